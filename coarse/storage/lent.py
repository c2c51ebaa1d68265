"""Memory of another process of this machine, read and written in place (as Open MPI's smsc/cma does).

process_vm_readv and process_vm_writev copy between two processes without a buffer between them. A kernel allows them to
a process that may trace the other: one of the same user, unless Yama or a container's rules narrow that.
"""

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np

from coarse.errors import LentMemoryError
from coarse.gpu.interface import address_of

_LIBC = ctypes.CDLL(None, use_errno=True)
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_MOST_BYTES = 1 << 30
"""Most bytes of one call; the kernel moves less than 2 GiB at a time."""
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class _Range(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _function(name: str) -> Any:  # noqa: ANN401
    """Return a function of the C library that moves bytes; None where it has no such function."""
    function = getattr(_LIBC, name, None)
    if function is not None:
        of_range = ctypes.POINTER(_Range)
        function.argtypes = (ctypes.c_int, of_range, ctypes.c_ulong, of_range, ctypes.c_ulong, ctypes.c_ulong)
        function.restype = ctypes.c_ssize_t
    return function


_READ, _WRITE = _function("process_vm_readv"), _function("process_vm_writev")


class LentArray:
    """Elements in sequence in the memory of a process; `owner` names the process in errors."""

    def __init__(
        self, owner: str, process_id: int, address: int, dtype: np.dtype[Any], num_elements: int
    ) -> None:
        self._owner = owner
        self._process_id = process_id
        self._address = address
        self._itemsize = dtype.itemsize
        self._num_elements = num_elements
        self._here, self._there = _Range(), _Range()

    def __len__(self) -> int:
        return self._num_elements

    def is_at(self, other: object) -> bool:
        """Return whether another array is the same memory."""
        if not isinstance(other, LentArray):
            return False
        return (self._process_id, self._address) == (other._process_id, other._address)

    def read(self, begin: int, end: int, into: np.ndarray) -> np.ndarray:
        """Read elements [begin, end) into the first of `into`, and return these.

        `into` has at least as many elements, of the same type.
        """
        values = into[: end - begin]
        self._move(_READ, begin, values)
        return values

    def write(self, begin: int, values: np.ndarray) -> None:
        """Write values, (n,) of the same type, in sequence in memory, to elements [begin, begin + n)."""
        self._move(_WRITE, begin, values)

    def _move(self, function: Any, begin: int, values: np.ndarray) -> None:  # noqa: ANN401
        here, there = self._here, self._there
        here.address, there.address = address_of(values), self._address + begin * self._itemsize
        left_bytes = values.nbytes
        while left_bytes:
            here.nbytes = there.nbytes = min(left_bytes, _MOST_BYTES)
            number = _moved(function, self._process_id, here, there)
            if number:
                has_ended = number == errno.ESRCH
                raise LentMemoryError(f"the memory of {self._owner}: {os.strerror(number)}", has_ended=has_ended)
            here.address += here.nbytes
            there.address += here.nbytes
            left_bytes -= here.nbytes


def _moved(function: Any, process_id: int, here: _Range, there: _Range) -> int:  # noqa: ANN401
    """Move bytes between this process and another; return 0, or the number of the kernel's reason."""
    if function is None:
        return errno.ENOSYS
    moved = function(process_id, here, 1, there, 1, 0)
    if moved == here.nbytes:
        return 0
    return ctypes.get_errno() if moved < 0 else errno.EFAULT


def allow_others() -> None:
    """Let processes of this user read and write this one's memory, where Yama requires that (scope 1)."""
    try:
        is_narrowed = _YAMA.read_text().strip() == "1"
    except OSError:
        return  # no Yama
    if is_narrowed:
        _LIBC.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def is_lendable(array: np.ndarray) -> bool:
    """Return whether the kernel moves an array's first and last byte.

    It moves none of some devices' memory.
    """
    scratch = np.empty(1, np.uint8)
    here, begin = _Range(address_of(scratch), 1), address_of(array)
    ends = (begin, begin + array.nbytes - 1)
    return not any(_moved(_READ, os.getpid(), here, _Range(address, 1)) for address in ends)


def why_not(process_id: int, address: int, value: int) -> str:
    """Return the reason why this process cannot read a value in another and write it back; empty if none.

    The value, of 8 bytes, is at an address of the other process.
    """
    word = np.zeros(1, np.int64)
    here, there = _Range(address_of(word), word.nbytes), _Range(address, word.nbytes)
    number = _moved(_READ, process_id, here, there)
    if not number and int(word[0]) != value:
        return f"process {process_id} has another value at an address that it named: is it another process to this one?"
    return os.strerror(number) if (number := number or _moved(_WRITE, process_id, here, there)) else ""


def why_not_here() -> str:
    """Return the reason why processes of this user cannot read one another's memory; empty if they can.

    A forked child tries it.
    """
    allow_others()
    word = np.array([0x10E], np.int64)
    child = os.fork()
    if child == 0:
        os._exit(1 if why_not(os.getppid(), address_of(word), int(word[0])) else 0)
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "the kernel does not let a process read another one's memory" if refused else ""
