# Pure: no MPI, threads, clock or environment.
"""Checksums of stored bytes, of 32 bits: the package crc32c's, which processors compute, or zlib's."""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from coarse.errors import StorageError
from coarse.protocol.distribution import how_to_install

Checksum = Callable[[Any], int]
"""Function of (n,) uint8 to 32 bits; it works without the GIL where n is large."""
CHECKSUMS: Final = ("crc32c", "crc32")
"""Names of checksums, the fastest first."""


def checksum_named(name: str) -> Checksum:
    """Return the checksum of a name.

    Raises:
        StorageError: its package is not installed, or there is none of that name.
    """
    if name == "crc32":
        return zlib.crc32
    if name == "crc32c":
        try:
            found: Checksum = import_module("crc32c").crc32c
            return found
        except ImportError as error:
            raise StorageError(
                f"these bytes were written with checksums by the package crc32c, which is not there ({error}); "
                f"install it with: {how_to_install('storage')}"
            ) from error
    raise StorageError(f"there is no checksum {name!r}; read the bytes by the release of coarse that wrote them")


def best_checksum() -> str:
    """Return the name of the fastest checksum that there is here."""
    try:
        import_module("crc32c")
    except ImportError:
        return "crc32"
    return "crc32c"
