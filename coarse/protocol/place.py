"""Where a memory device keeps its bytes, as the partition table's `memory` says it."""

import re
from dataclasses import dataclass

from coarse.errors import ConfigError


@dataclass(frozen=True)
class Anywhere:
    """The machine's shared memory, on whichever NUMA nodes the kernel takes it from."""

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
    """A character device of memory (devdax) that one memory device has for itself."""

    path: str

    def __str__(self) -> str:
        return f"dax:{self.path}"


@dataclass(frozen=True)
class Folder:
    """A file without a name in a folder of a file system: of huge pages, of a DAX mount, of a tmpfs."""

    path: str

    def __str__(self) -> str:
        return f"folder:{self.path}"


MemoryPlace = Anywhere | NumaNode | DaxDevice | Folder

_EXAMPLES = "'numa:2', 'dax:/dev/dax0.0' or 'folder:/mnt/huge'"


def memory_place(text: str) -> MemoryPlace:
    """The place that "numa:2", "dax:/dev/dax0.0" or "folder:/mnt/huge" names; ConfigError for any other text.

    Whether a machine has it is known only there.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "numa":
        if not re.fullmatch(r"[0-9]{1,4}", rest):
            raise _wrong(f"the number of a NUMA node, such as 'numa:2', got {text!r}")
        return NumaNode(int(rest))
    if scheme in ("dax", "folder"):
        if not rest.startswith("/"):
            raise _wrong(f"an absolute path after {scheme}:, got {text!r}")
        return DaxDevice(rest) if scheme == "dax" else Folder(rest)
    raise _wrong(f"{_EXAMPLES}, got {text!r}; leave it out for the machine's shared memory")


def _wrong(wanted: str) -> ConfigError:
    return ConfigError(f"memory must be {wanted}", key="memory")
