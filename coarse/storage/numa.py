"""NUMA nodes of this machine, and memory files bound to one of them.

[Note: whose policy] A policy that mbind(2) sets on a shared mapping of a memory file belongs to the file, not to the
mapping (Linux, "NUMA memory policy", shared policies): a process that makes a page real, by touching it or by
fallocate, under any policy of its own, takes it from the node that the file is bound to.
"""

import ctypes
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from coarse.errors import CapacityError, ConfigError
from coarse.storage.region import MemoryFile, PageSource, check_capacity, create_memory_file

_NODES = Path("/sys/devices/system/node")
_ZONES = Path("/proc/zoneinfo")
_STATUS = Path("/proc/self/status")
_SYS_MBIND = 237
"""Number of mbind(2) on x86-64 (coarse runs on no other)."""
_MPOL_BIND = 2
_MAX_NODES = 1024


@dataclass(frozen=True, kw_only=True)
class MemoryNode:
    """NUMA node that has memory."""

    number: int
    processors: str
    """Processors, such as "0-3,8"; empty where it has none, as CXL memory."""
    total_bytes: int
    room_bytes: int
    """Bytes that may still be taken: the free pages above the kernel's reserve, and files that it would drop for them.
    """

    def __str__(self) -> str:
        processors = f"processors {self.processors}" if self.processors else "no processors"
        return f"{self.number}: {self.room_bytes >> 20} MiB free of {self.total_bytes >> 20} MiB, {processors}"


class NumaSource(PageSource):
    """Pages of one NUMA node."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.name = f"NUMA node {number}"

    def room_bytes(self) -> int:
        """Return the bytes that the node has left, if the machine and the control group have them too."""
        node = memory_node(self._number)
        return min(super().room_bytes(), node.room_bytes if node else 0)


def memory_nodes() -> list[MemoryNode]:
    """Return the nodes that are online and have memory, by number.

    There are none where the kernel knows no NUMA nodes.
    """
    online, filled = (_listed(_NODES / name) for name in ("online", "has_memory"))
    return [node for number in sorted(online & filled) if (node := memory_node(number))]


def memory_node(number: int) -> MemoryNode | None:
    """Return one node; None where there is none."""
    folder = _NODES / f"node{number}"
    try:
        info = dict(re.findall(r"Node \d+ (\S+): +(\d+)", (folder / "meminfo").read_text()))
        processors = (folder / "cpulist").read_text().strip()
    except OSError:
        return None
    nbytes = {name: int(kib) * 1024 for name, kib in info.items()}
    reserve_bytes = _reserve_bytes(number)
    cached_bytes = nbytes["Active(file)"] + nbytes["Inactive(file)"]
    free_bytes = nbytes["MemFree"] - reserve_bytes + cached_bytes - min(cached_bytes // 2, reserve_bytes)
    return MemoryNode(
        number=number,
        processors=processors,
        total_bytes=nbytes["MemTotal"],
        room_bytes=max(free_bytes, 0),
    )


def create_on_node(number: int, name: str, wanted_bytes: int | None, num_sharers: int) -> MemoryFile:
    """Make a sparse memory file whose pages come from one node.

    It has `wanted_bytes`, or all the node's, if None.

    Raises:
        ConfigError: there is no such node, or this process may not bind memory to it.
        CapacityError: the node has not enough for the `num_sharers` devices that want so much of it.
    """
    node = require_node(number)
    if wanted_bytes is not None:
        check_capacity(wanted_bytes, num_sharers, f"NUMA node {number}", node.room_bytes)
    nbytes = wanted_bytes or node.total_bytes
    descriptor = create_memory_file(name, nbytes)
    try:
        bind(descriptor, nbytes, number)
    except BaseException:
        os.close(descriptor)
        raise
    return MemoryFile(descriptor=descriptor, capacity_bytes=nbytes, source=NumaSource(number))


def require_node(number: int) -> MemoryNode:
    """Return a node that this process may take memory from.

    Raises:
        ConfigError: there is none of that number, or it is not allowed; the error names those there are.
    """
    nodes = memory_nodes()
    found = next((node for node in nodes if node.number == number), None)
    if found is None:
        there = ", ".join(str(node.number) for node in nodes) or "none"
        raise ConfigError(
            f"this machine has no NUMA node {number} with memory (with memory: {there}); name one of these, or bring "
            "the memory online as one (daxctl reconfigure-device --mode=system-ram); `coarse check` shows them"
        )
    allowed = re.search(r"^Mems_allowed_list:\s*(\S+)$", _STATUS.read_text(), re.MULTILINE)
    if allowed and number not in _numbers(allowed[1]):
        raise ConfigError(
            f"this process may take memory from the NUMA nodes {allowed[1]} alone (its cpuset); let the container or "
            f"the batch system give it node {number} too, such as by docker run --cpuset-mems"
        )
    return found


def bind(descriptor: int, nbytes: int, number: int) -> None:
    """Bind a memory file to one node, from which all its pages come; see [Note: whose policy].

    Raises:
        ConfigError: the kernel refuses it.
        CapacityError: this process may not map so much.
    """
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    mask[number // 64] = 1 << number % 64
    call = ctypes.CDLL(None, use_errno=True).syscall
    try:
        whole = mmap.mmap(descriptor, nbytes)
    except OSError as error:
        raise CapacityError(
            f"this process cannot map {nbytes} bytes, to bind them to NUMA node {number} ({error.strerror}); raise the "
            "limit of its address space (ulimit -v), or lower device_capacity_bytes"
        ) from None
    with whole as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        arguments = (ctypes.addressof(first), nbytes, _MPOL_BIND, ctypes.addressof(mask), _MAX_NODES, 0)
        result = call(_SYS_MBIND, *(ctypes.c_ulong(argument) for argument in arguments))
        del first
    if result:
        raise ConfigError(
            f"the kernel refused to bind memory to NUMA node {number} (mbind: {os.strerror(ctypes.get_errno())}); in a "
            "container allow the call, such as by docker run --cap-add SYS_NICE"
        )


def _reserve_bytes(number: int) -> int:
    """Return the bytes that the kernel keeps free on a node: the high watermarks of its zones."""
    pages, is_here = 0, False
    for line in _ZONES.read_text().splitlines():
        if line.startswith("Node "):
            is_here = line.startswith(f"Node {number},")
        elif is_here and (found := re.fullmatch(r"\s+high\s+(\d+)", line)):
            pages += int(found[1])
    return pages * mmap.PAGESIZE


def _listed(path: Path) -> set[int]:
    """Return the numbers of a file such as "0-1,4"; none where there is no such file."""
    try:
        return _numbers(path.read_text().strip())
    except OSError:
        return set()


def _numbers(text: str) -> set[int]:
    ranges = [part.partition("-") for part in text.split(",") if part]
    return {number for low, _, high in ranges for number in range(int(low), int(high or low) + 1)}
