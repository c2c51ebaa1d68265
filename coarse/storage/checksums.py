# Pure: no MPI, threads, clock or environment.
"""32-bit checksums of stored bytes: the package crc32c's, which processors have an instruction for, or zlib's."""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from coarse.errors import StorageError
from coarse.protocol.distribution import how_to_install

Checksum = Callable[[Any], int]
"""Of (n,) uint8, 32 bits; without the GIL where n is large."""
CHECKSUMS: Final = ("crc32c", "crc32")
"""By name, the fastest first."""


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
