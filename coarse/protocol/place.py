"""Places in which memory devices keep their bytes, as the partition table's `memory` states them."""

import re
from dataclasses import dataclass, replace

from coarse.errors import ConfigError


@dataclass(frozen=True)
class Anywhere:
    """Shared memory of the machine, on any NUMA nodes from which the kernel takes it."""

    def __str__(self) -> str:
        return "anywhere"


@dataclass(frozen=True)
class NumaNode:
    """Shared memory of one NUMA node alone; CXL memory that the kernel manages is a node without processors."""

    number: int

    def __str__(self) -> str:
        return f"numa:{self.number}"


@dataclass(frozen=True)
class DaxDevice:
    """Character device of memory (devdax), or a range of its bytes, exclusive to one memory device."""

    path: str
    offset_bytes: int = 0
    nbytes: int | None = None
    """Length of the range; None means up to the end."""

    def __str__(self) -> str:
        return f"dax:{self.path}{_range_text(self)}"


@dataclass(frozen=True)
class ExistingFile:
    """Existing file, or a range of its bytes, exclusive to one memory device; famfs has such files."""

    path: str
    offset_bytes: int = 0
    nbytes: int | None = None
    """Length of the range; None means up to the end."""

    def __str__(self) -> str:
        return f"file:{self.path}{_range_text(self)}"


@dataclass(frozen=True)
class Folder:
    """File without a name in a folder of a file system: of huge pages, of a DAX mount, of a tmpfs."""

    path: str

    def __str__(self) -> str:
        return f"folder:{self.path}"


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU, by its index among those that the memory device's process sees."""

    number: int

    def __str__(self) -> str:
        return f"cuda:{self.number}"


MemoryPlace = Anywhere | NumaNode | DaxDevice | ExistingFile | Folder | GpuMemory

_EXAMPLES = "'numa:2', 'dax:/dev/dax0.0', 'file:/mnt/famfs/pool', 'folder:/mnt/huge' or 'cuda:0'"


def memory_place(text: str) -> MemoryPlace:
    """Return the place of a text such as "numa:2", "dax:/dev/dax0.0", "file:/mnt/famfs/pool" or "cuda:0".

    A folder is named by "folder:/mnt/huge". Only the machine itself knows whether it has the place.

    Raises:
        ConfigError: The text names no place.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "numa":
        if not re.fullmatch(r"[0-9]{1,4}", rest):
            raise _wrong(f"the number of a NUMA node, such as 'numa:2', got {text!r}")
        return NumaNode(int(rest))
    if scheme == "cuda":
        if not re.fullmatch(r"[0-9]{1,3}", rest):
            raise _wrong(f"the index of a GPU, such as 'cuda:0', got {text!r}")
        return GpuMemory(int(rest))
    if scheme in _OF_PATHS:
        if not rest.startswith("/"):
            raise _wrong(f"an absolute path after {scheme}:, got {text!r}")
        return _OF_PATHS[scheme](rest)
    raise _wrong(f"{_EXAMPLES}, got {text!r}; leave it out for the machine's shared memory")


_OF_PATHS: dict[str, type[DaxDevice | ExistingFile | Folder]] = {
    "dax": DaxDevice,
    "file": ExistingFile,
    "folder": Folder,
}


def in_range(place: MemoryPlace, offset_bytes: int | None, nbytes: int | None) -> MemoryPlace:
    """Return the place narrowed to a range; None leaves an end as it is."""
    for key, value, least in (("memory_offset_bytes", offset_bytes, 0), ("memory_bytes", nbytes, 1)):
        if value is None:
            continue
        if not isinstance(place, DaxDevice | ExistingFile):
            raise ConfigError(
                f"{key} means nothing for memory '{place}', only for dax: and file:; leave it out", key=key
            )
        if not least <= value < _MOST_BYTES:
            raise ConfigError(f"{key} must lie in {least}..{_MOST_BYTES - 1}, got {value}; correct it", key=key)
    if isinstance(place, DaxDevice | ExistingFile):
        return replace(place, offset_bytes=offset_bytes or 0, nbytes=nbytes)
    return place


def overlap(one: MemoryPlace, other: MemoryPlace) -> bool:
    """Return whether two places share a byte of one device or file, as far as their paths tell."""
    if not isinstance(one, DaxDevice | ExistingFile) or not isinstance(other, DaxDevice | ExistingFile):
        return False
    return one.path == other.path and one.offset_bytes < _end(other) and other.offset_bytes < _end(one)


_MOST_BYTES = 1 << 62


def _end(place: DaxDevice | ExistingFile) -> int:
    return _MOST_BYTES if place.nbytes is None else place.offset_bytes + place.nbytes


def _range_text(place: DaxDevice | ExistingFile) -> str:
    """Return a text of the range that a place takes of its file, "" for the whole file."""
    length = "" if place.nbytes is None else f", {place.nbytes} bytes long"
    return f" from byte {place.offset_bytes}{length}" if place.offset_bytes or length else ""


def _wrong(wanted: str) -> ConfigError:
    return ConfigError(f"memory must be {wanted}", key="memory")
