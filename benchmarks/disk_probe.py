"""How long a disk takes to read and write so many bytes at once, past the kernel's cache."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PIECE_BYTES = 2 << 20
_DEPTH = 2
"""Reads, and writes, that are under way at once, as an optimizer node has them."""
_FILE_BYTES = 512 << 20


def probe_s(folder: Path, read_bytes: int, write_bytes: int) -> float:
    """Reads of one file and writes of another, at once; both are removed."""
    names = (folder / "probe-read", folder / "probe-write")
    descriptors = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600) for name in names]
    try:
        for descriptor in descriptors:
            os.posix_fallocate(descriptor, 0, _FILE_BYTES)
            _in_threads([_writer(descriptor, 0, _FILE_BYTES)])
        readers = [_reader(descriptors[0], part, read_bytes // _DEPTH) for part in range(_DEPTH)]
        writers = [_writer(descriptors[1], part, write_bytes // _DEPTH) for part in range(_DEPTH)]
        begin_s = time.monotonic()
        _in_threads([*readers, *writers])
        os.fsync(descriptors[1])
        return time.monotonic() - begin_s
    finally:
        for descriptor, name in zip(descriptors, names, strict=True):
            os.close(descriptor)
            name.unlink()


def _reader(descriptor: int, part: int, nbytes: int) -> Callable[[], None]:
    buffer = mmap.mmap(-1, _PIECE_BYTES)

    def read() -> None:
        for offset in _offsets(part, nbytes):
            os.preadv(descriptor, [buffer], offset)

    return read


def _writer(descriptor: int, part: int, nbytes: int) -> Callable[[], None]:
    buffer = mmap.mmap(-1, _PIECE_BYTES)
    buffer.write(os.urandom(_PIECE_BYTES))

    def write() -> None:
        for offset in _offsets(part, nbytes):
            os.pwritev(descriptor, [buffer], offset)

    return write


def _offsets(part: int, nbytes: int) -> list[int]:
    """Where a thread's pieces lie, which begins in its part of the file."""
    first = part * (_FILE_BYTES // _DEPTH)
    return [(first + done) % _FILE_BYTES for done in range(0, nbytes, _PIECE_BYTES)]


def _in_threads(tasks: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
