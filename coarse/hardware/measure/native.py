"""Loops of machine code that measure memory: dependent loads, streams, flushes of cache lines.

See [Note: machine code]. They need no more than every x86-64 processor has (SSE2, clflush) and, for flushes,
instructions that the processor reports.
"""

import os
from collections.abc import Collection

import numpy as np

from coarse.errors import MeasurementError
from coarse.gpu.interface import address_of
from coarse.protocol.units import LINE_BYTES
from coarse.storage.machine_code import executable

MACHINE = "x86_64"

# Arguments come in rdi, rsi and rdx; a result goes out in rax (System V ABI).
_CHASE = bytes.fromhex(
    "4889f0"  # mov rax, rsi            where to begin, in bytes from rdi
    "488b0407"  # again: mov rax, [rdi+rax]    the next place is what stands at this one
    "48ffca"  # dec rdx                  how many loads are left
    "75f7"  # jne again
    "c3"  # ret
)
_LOAD = bytes.fromhex(
    "0f2807"  # again: movaps xmm0, [rdi]      a line, in four loads
    "0f284f10"  # movaps xmm1, [rdi+16]
    "0f285720"  # movaps xmm2, [rdi+32]
    "0f285f30"  # movaps xmm3, [rdi+48]
    "4883c740"  # add rdi, 64
    "4883ee40"  # sub rsi, 64              bytes that are left
    "75e7"  # jne again
    "c3"  # ret
)
_STORE = bytes.fromhex(
    "66480f6ec2"  # movq xmm0, rdx           what to store
    "660f6cc0"  # punpcklqdq xmm0, xmm0
    "0f2907"  # again: movaps [rdi], xmm0      a line, in four stores
    "0f294710"  # movaps [rdi+16], xmm0
    "0f294720"  # movaps [rdi+32], xmm0
    "0f294730"  # movaps [rdi+48], xmm0
    "4883c740"  # add rdi, 64
    "4883ee40"  # sub rsi, 64
    "75e7"  # jne again
    "c3"  # ret
)
_STORE_FLUSHED = (
    "66480f6ec2"  # movq xmm0, rdx
    "660f6cc0"  # punpcklqdq xmm0, xmm0
    "0f2907"  # again: movaps [rdi], xmm0
    "0f294710"  # movaps [rdi+16], xmm0
    "0f294720"  # movaps [rdi+32], xmm0
    "0f294730"  # movaps [rdi+48], xmm0
    "{flush}"  # FLUSH [rdi]
    "4883c740"  # add rdi, 64
    "4883ee40"  # sub rsi, 64
    "75e3"  # jne again
    "0faef8"  # sfence                   once all are on their way
    "c3"  # ret
)
_FLUSH_EACH = (
    "{flush}"  # again: FLUSH [rdi]
    "0faef8"  # sfence                   after each line
    "4883c740"  # add rdi, 64
    "4883ee40"  # sub rsi, 64
    "75ef"  # jne again
    "c3"  # ret
)
_EVICT = (
    "{flush}"  # again: FLUSH [rdi]
    "4883c740"  # add rdi, 64
    "4883ee40"  # sub rsi, 64
    "75f2"  # jne again
    "0faef0"  # mfence                   no load passes it
    "c3"  # ret
)
_FLUSHES = {"clwb": "660fae37", "clflushopt": "660fae3f", "clflush": "3e0fae3f"}
"""Code of FLUSH, in four bytes each; 3e is a prefix that does nothing here."""

def write_back_instruction(flags: Collection[str]) -> str | None:
    """Return the instruction that writes a line to memory; None if there is none.

    clwb, which may keep it in the cache, comes before others.
    """
    return next((name for name in _FLUSHES if name in flags), None)


def evict_instruction(flags: Collection[str]) -> str | None:
    """Return the instruction that removes a line from all caches; None if there is none."""
    return next((name for name in ("clflushopt", "clflush") if name in flags), None)


class Native:
    """Loops on arrays of whole cache lines: (n,) uint8, contiguous, that begin at a cache line."""

    def __init__(self, flags: Collection[str], machine: str | None = None) -> None:
        """Make the loops for a processor; `flags` are those of /proc/cpuinfo.

        Raises:
            MeasurementError: another processor, or a kernel that does not let memory be made executable.
        """
        machine = machine or os.uname().machine
        if machine != MACHINE:
            raise MeasurementError(
                f"latency and flushes are measured by machine code of {MACHINE}, and this processor is of {machine}; "
                "state the device's figures in a machine file by hand (docs/predict.md)"
            )
        self.write_back, self.evicting = write_back_instruction(flags), evict_instruction(flags)
        code = {"chase": _CHASE, "load": _LOAD, "store": _STORE}
        for name, template, instruction in (
            ("store_flushed", _STORE_FLUSHED, self.write_back),
            ("flush_each", _FLUSH_EACH, self.write_back),
            ("evict", _EVICT, self.evicting),
        ):
            if instruction is not None:
                code[name] = bytes.fromhex(template.format(flush=_FLUSHES[instruction]))
        try:
            self._page, self._loops = executable(code)
        except OSError as error:
            raise MeasurementError(
                f"the kernel lets this process make no memory executable (mprotect: {error.strerror}), which machine "
                "code that measures needs; measure where SELinux or seccomp allow it"
            ) from None

    def chase(self, memory: np.ndarray, begin: int, num_loads: int) -> int:
        """Return the offset where so many dependent loads end; offsets are int64, in bytes.

        Each load begins at the offset that the one before has read.
        """
        assert num_loads > 0
        return self._loops["chase"](_address(memory), begin, num_loads)

    def load(self, memory: np.ndarray) -> None:
        """Load every byte."""
        self._loops["load"](_address(memory), memory.nbytes, 0)

    def store(self, memory: np.ndarray, value: int) -> None:
        """Store an int64 over and over."""
        self._loops["store"](_address(memory), memory.nbytes, value)

    def store_flushed(self, memory: np.ndarray, value: int) -> None:
        """Store an int64 over and over, have each line written to memory, and wait for all of them."""
        self._loops["store_flushed"](_address(memory), memory.nbytes, value)

    def flush_each(self, memory: np.ndarray) -> None:
        """Have each line written to memory, and wait for each."""
        self._loops["flush_each"](_address(memory), memory.nbytes, 0)

    def evict(self, memory: np.ndarray) -> None:
        """Remove each line from all caches, written to memory, and wait for all of them."""
        self._loops["evict"](_address(memory), memory.nbytes, 0)


def _address(memory: np.ndarray) -> int:
    first = address_of(memory)
    assert memory.dtype == np.uint8, "the array is not of bytes"
    assert memory.flags.c_contiguous, "the array has gaps"
    assert memory.nbytes, "the array is empty"
    assert not memory.nbytes % LINE_BYTES, "the array ends within a cache line"
    assert not first % LINE_BYTES, "the array begins within a cache line"
    return first
