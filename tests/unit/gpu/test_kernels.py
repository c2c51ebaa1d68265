"""The CUDA source of sums, compiled for this machine's processor, gives numpy's bits."""

import ctypes
import itertools
import shutil
import subprocess

import numpy as np
import pytest

from coarse.gpu.kernels import NAME, OPTIONS, fold_source
from coarse.protocol.dtypes import DType, Op
from tests.support.host_arrays import HostArrays

GPU_WORDS = """
#include <cstring>
#define __global__
#define __device__ static
struct Dim { int x; };
static const Dim gridDim = {3}, blockDim = {4};
static Dim blockIdx, threadIdx;
static float __uint_as_float(unsigned int bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned int __float_as_uint(float value) { unsigned int bits; memcpy(&bits, &value, 4); return bits; }
"""
ALL_THREADS = """
extern "C" void run({parameters}) {{
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
            fold({names});
}}
"""
CASES = [
    *itertools.product([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16], list(Op), [1, 3, 4]),
    *itertools.product([DType.INT32, DType.INT64, DType.UINT8], [Op.SUM, Op.MIN, Op.MAX], [1]),
]
"""(type, operation, divisor); of an average alone is there a divisor. Conversions of float16 are the GPU's own."""


def compiled(folder, source: str):
    """The kernel as a function that runs every thread of a grid of three blocks, one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler to run the kernel's source by")
    parameters = source.split(f"{NAME}(")[1].split(")")[0]
    names = ", ".join(part.split()[-1].lstrip("*") for part in parameters.split(","))
    text = GPU_WORDS + source + ALL_THREADS.format(parameters=parameters, names=names)
    (folder / "kernel.cpp").write_text(text)
    command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", folder / "kernel.so", folder / "kernel.cpp"]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "kernel.so")).run


def values_of(dtype: DType, seed: int) -> np.ndarray:
    """Elements of any size, and those of which arithmetic makes something special."""
    generator = np.random.default_rng(seed)
    if dtype.is_integer:
        limits = np.iinfo(dtype.storage)
        return generator.integers(limits.min, limits.max, 1001, dtype.storage, endpoint=True)
    values = generator.normal(size=1001) * 10.0 ** generator.integers(-12, 12, 1001)
    values[generator.integers(0, 1001, 60)] = np.repeat([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-41], 10)
    if dtype is DType.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.storage)


def run(kernel, arrays: list[np.ndarray], num_elements: int) -> None:
    kernel(*(ctypes.c_void_p(array.ctypes.data) for array in arrays), ctypes.c_longlong(num_elements))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.INT32, DType.INT64, DType.UINT8])
def test_every_sum_has_the_bits_of_numpy(tmp_path, dtype):
    for number, (kind, op, divisor) in enumerate(CASES):
        if kind is not dtype or (divisor > 1 and op is not Op.AVERAGE):
            continue
        sources = [values_of(dtype, seed) for seed in range(3)]
        wanted = [np.empty_like(sources[0]) for _ in range(2)]
        HostArrays().reduce(sources, wanted, dtype, op, divisor)
        (tmp_path / str(number)).mkdir()
        kernel = compiled(tmp_path / str(number), fold_source(dtype, op, 3, 2, divisor, widens=False))
        found = [np.empty_like(sources[0]) for _ in range(2)]
        run(kernel, [*sources, *found], 1001)
        for one, other in zip(found, wanted, strict=True):
            require_equal(one, other, dtype)


def require_equal(found: np.ndarray, wanted: np.ndarray, dtype: DType) -> None:
    """The same bits, but for those by which one NaN differs from another, and the sign of a zero that is a minimum."""
    if dtype.is_integer:
        assert (found == wanted).all()
        return
    wide = [np.uint32(array) << 16 if dtype is DType.BFLOAT16 else array for array in (found, wanted)]
    one, other = (array.view(np.float32) if dtype is DType.BFLOAT16 else array for array in wide)
    assert ((one == other) | (np.isnan(one) & np.isnan(other))).all()


def test_a_sum_may_be_written_where_its_contributions_lie(tmp_path):
    sources = [values_of(DType.FLOAT32, seed) for seed in range(2)]
    wanted = [np.empty_like(sources[0])]
    HostArrays().reduce(sources, wanted, DType.FLOAT32, Op.AVERAGE, 2)
    kernel = compiled(tmp_path, fold_source(DType.FLOAT32, Op.AVERAGE, 2, 2, 2, widens=False))
    run(kernel, [*sources, *sources], 1001)
    require_equal(sources[0], wanted[0], DType.FLOAT32)
    require_equal(sources[1], wanted[0], DType.FLOAT32)


def test_a_part_of_a_ring_is_not_rounded(tmp_path):
    sources = [values_of(DType.BFLOAT16, seed) for seed in range(2)]
    wanted = np.empty(1001, np.float32)
    HostArrays().combine(sources, wanted, DType.BFLOAT16, Op.SUM)
    kernel = compiled(tmp_path, fold_source(DType.BFLOAT16, Op.SUM, 2, 1, 1, widens=True))
    found = np.empty(1001, np.float32)
    run(kernel, [*sources, found], 1001)
    require_equal(found, wanted, DType.FLOAT32)


def test_kernels_compute_as_ieee_754_does():
    assert OPTIONS == ("--fmad=false", "--ftz=false", "--prec-div=true")


def test_halves_are_widened_and_rounded_by_the_gpu_s_own_instructions():
    source = fold_source(DType.FLOAT16, Op.SUM, 2, 1, 1, widens=False)
    assert "cvt.f32.f16" in source
    assert "cvt.rn.f16.f32" in source
