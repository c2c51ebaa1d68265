"""Instructions that empty caches of a range; see [Note: machine code].

x86-64 has CLFLUSHOPT (or CLFLUSH, on processors without it) and MFENCE; they write a dirty line back and drop it.
ARMv8 has DC CIVAC and DSB for the same; that has not run on such a machine yet.
"""

import platform

import numpy as np

from coarse.errors import UnsupportedError
from coarse.gpu.interface import address_of
from coarse.protocol.units import LINE_BYTES
from coarse.storage.machine_code import executable
from coarse.storage.processor import cpu_flags

_X86_FLUSHES = {"clflushopt": "660fae3f", "clflush": "0fae3f90"}
"""Code that flushes the line at RDI, in four bytes each."""
_X86_LOOP = "4839f7 730a {flush} 4883c740 ebf1 0faef0 c3"
"""Loop of x86-64: while RDI is below RSI, flush, add 64; then MFENCE."""
_ARM_LOOP = "1f0001eb 82000054 207e0bd5 00000191 fcffff17 9f3f03d5 c0035fd6"
"""Loop of ARMv8: while X0 is below X1, DC CIVAC, add 64; then DSB SY."""


def flush_code(machine: str, flags: frozenset[str]) -> bytes:
    """Return the machine code of flush(begin, end) for a processor, by its name in `uname -m`.

    Raises:
        UnsupportedError: another kind of processor.
    """
    if machine in ("x86_64", "AMD64"):
        flush = _X86_FLUSHES["clflushopt" if "clflushopt" in flags else "clflush"]
        return bytes.fromhex(_X86_LOOP.format(flush=flush))
    if machine in ("aarch64", "arm64"):
        return bytes.fromhex(_ARM_LOOP)
    raise UnsupportedError(
        f"coarse knows no instruction by which a {machine} processor empties its caches; x86_64 and aarch64 have one. "
        'Where the hardware keeps the pool coherent, set coherence = "hardware" in [pool]'
    )


class FlushedLines:
    """Caches that this processor's own instructions flush; see CacheLines."""

    def __init__(self) -> None:
        code = flush_code(platform.machine(), cpu_flags())
        try:
            self._page, loops = executable({"flush": code})
        except OSError as error:
            raise UnsupportedError(
                f"this process may not run code that it wrote ({error.strerror}), so it cannot flush caches; allow it "
                'executable memory, or set coherence = "hardware" in [pool] where the hardware keeps it coherent'
            ) from None
        self._loop = loops["flush"]

    def flush(self, lines: np.ndarray) -> None:
        """Write the cached lines of a range back, and drop them."""
        begin = address_of(lines)
        self._loop(begin // LINE_BYTES * LINE_BYTES, begin + lines.nbytes, 0)
