"""Instructions that Python has no word for, run from their bytes.

[Note: machine code] Interpreted code cannot chase pointers as fast as memory answers, numpy has no instruction that
flushes a cache line, and a package installed by pip cannot count on a compiler. So a few loops stand in this package as
the bytes of their instructions, a few dozen each, and run from a page that is first written and then made executable;
at no time is it both. Beside the bytes stands a description of their work; tests check it on arrays.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping

_ALIGNMENT = 64
_TRAP = b"\xcc"
"""Code of x86-64's int3, between loops: nothing runs on from one into the next."""

Loop = Callable[..., int]
"""Function of an address and two whole numbers of 64 bits, which returns one such number."""


def executable(code: Mapping[str, bytes]) -> tuple[mmap.mmap, dict[str, Loop]]:
    """Return the memory of loops, which must live as long as they, and the loops by name.

    Raises:
        OSError: the kernel lets this process make no memory executable.
    """
    offsets, text = {}, b""
    for name, loop in code.items():
        text += _TRAP * (-len(text) % _ALIGNMENT)
        offsets[name] = len(text)
        text += loop
    assert len(text) <= mmap.PAGESIZE
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.write(text)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC)
    if library.mprotect(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return page, {name: kind(address + offset) for name, offset in offsets.items()}
