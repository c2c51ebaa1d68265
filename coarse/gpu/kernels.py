# Pure: no MPI, threads, clock or environment.
"""CUDA source of sums: one kernel reads all sources and writes all targets in one pass over the bytes.

The result equals that of `coarse.storage.reduce` to the bit: the same order of additions in the same accumulator type,
one rounding at the end, and the arithmetic of IEEE 754 (OPTIONS). A thread has read all sources of an element before it
writes a target, so targets may be the sources. No CUDA header is needed.
"""

from functools import cache

from coarse.protocol.dtypes import DType, Op

NAME = "fold"
OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true")
"""Options of NVRTC for the arithmetic of IEEE 754: no multiplication joined with an addition, subnormal numbers kept.
"""

_STORAGE = {
    DType.FLOAT16: "unsigned short",
    DType.BFLOAT16: "unsigned short",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.INT32: "int",
    DType.INT64: "long long",
    DType.UINT8: "unsigned char",
}
_HALVES = (DType.FLOAT16, DType.BFLOAT16)
_WIDEN = {
    DType.FLOAT16: 'float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value)); return wide;',
    DType.BFLOAT16: "return __uint_as_float((unsigned int)value << 16);",
}
_NARROW = {
    DType.FLOAT16: 'unsigned short half; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value)); return half;',
    DType.BFLOAT16: (
        "unsigned int bits = __float_as_uint(value);\n"
        "    if (value != value) return (unsigned short)((bits >> 16) | 0x0040);\n"
        "    return (unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);"
    ),
}
_UNSIGNED = {DType.INT32: "unsigned int", DType.INT64: "unsigned long long", DType.UINT8: "unsigned char"}


@cache
def fold_source(dtype: DType, op: Op, num_sources: int, num_targets: int, divisor: int, *, widens: bool) -> str:
    """Return the source of a kernel `fold(sources..., targets..., num_elements)` of so many pointers.

    `widens`: its targets are of the accumulator type, and are not rounded.
    """
    storage = _STORAGE[dtype]
    wide = "float" if dtype in _HALVES else storage
    result = wide if widens else storage
    pointers = [f"const {storage}* s{number}" for number in range(num_sources)]
    pointers += [f"{result}* t{number}" for number in range(num_targets)]
    additions = [f"total = combine(total, widen(s{number}[at]));" for number in range(1, num_sources)]
    writes = [f"t{number}[at] = result;" for number in range(num_targets)]
    body = "\n        ".join(
        [
            f"{wide} total = widen(s0[at]);",
            *additions,
            *_scaling(dtype, divisor),
            f"{result} result = {'total' if widens else 'narrow(total)'};",
            *writes,
        ]
    )
    return f"""
__device__ {wide} widen({storage} value) {{
    {_WIDEN.get(dtype, "return value;")}
}}
__device__ {storage} narrow({wide} value) {{
    {_NARROW.get(dtype, "return value;")}
}}
__device__ {wide} combine({wide} one, {wide} other) {{
    {_combination(dtype, op, wide)}
}}
extern "C" __global__ void {NAME}({", ".join(pointers)}, long long num_elements) {{
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < num_elements; at += stride) {{
        {body}
    }}
}}
"""


def _combination(dtype: DType, op: Op, wide: str) -> str:
    if op in (Op.SUM, Op.AVERAGE):
        unsigned = _UNSIGNED.get(dtype)  # signed integers that overflow are undefined in C, and wrap in numpy
        return f"return ({wide})(({unsigned})one + ({unsigned})other);" if unsigned else "return one + other;"
    sign = "<" if op is Op.MIN else ">"
    return f"return one {sign} other || one != one ? one : other;"  # a NaN stays, as in numpy's minimum


def _scaling(dtype: DType, divisor: int) -> list[str]:
    """Return the lines that divide a total, as `coarse.storage.reduce.scale` does.

    It divides by a power of two by multiplying.
    """
    if divisor == 1:
        return []
    suffix = "" if dtype is DType.FLOAT64 else "f"
    if divisor & (divisor - 1) == 0:
        return [f"total = total * {1.0 / divisor!r}{suffix};"]
    return [f"total = total / {float(divisor)!r}{suffix};"]
