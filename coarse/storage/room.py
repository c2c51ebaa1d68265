"""Memory that may still be taken: what the kernel has, within the limits of this process's control groups.

A scheduler such as Slurm limits a job by a group far below the root of the hierarchy, and the group of any level may
bind. A container sees its own group as the root.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HIERARCHY = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True)
class GroupFiles:
    """Names of the files in which a version of control groups tells a group's memory."""

    limit: str
    usage: str
    prefix: str
    """Beginning of each key of memory.stat that counts the groups below, too."""


V1 = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
V2 = GroupFiles("memory.max", "memory.current", "")


@dataclass(frozen=True)
class GroupLimit:
    """Memory limit of one control group and what it leaves, in bytes."""

    group: str
    limit_bytes: int
    left_bytes: int

    def __str__(self) -> str:
        return f"control group {self.group} is limited to {self.limit_bytes} bytes"


def available_bytes() -> int:
    """Return the bytes that may still be taken: what the kernel has left, or what the tightest control group leaves."""
    return min(_kernel_bytes(), *(limit.left_bytes for limit in group_limits()), UNLIMITED_BYTES)


def total_bytes() -> int:
    """Return the bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def binding_limit() -> GroupLimit | None:
    """Return the control group that leaves less than the kernel has, or None; of several the tightest."""
    tightest = min(group_limits(), key=lambda limit: limit.left_bytes, default=None)
    return tightest if tightest is not None and tightest.left_bytes < _kernel_bytes() else None


def group_limits(hierarchy: Path = _HIERARCHY, own_groups: Path = _OWN_GROUPS) -> list[GroupLimit]:
    """Return the limits of this process's control groups and of all groups above them, of both versions."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    paths = {V2: "/", V1: "/"}  # the roots, where the kernel does not say
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[V2] = path
        elif "memory" in controllers.split(","):
            paths[V1] = path
    roots = {V2: hierarchy, V1: hierarchy / "memory"}
    limits = (_limit(roots[files], group, files) for files, path in paths.items() for group in _with_parents(path))
    return [limit for limit in limits if limit is not None]


def _with_parents(path: str) -> Iterator[str]:
    """Yield a group's path and those of the groups above it, the root last."""
    while path.strip("/"):
        yield path
        path = os.path.dirname(path.rstrip("/"))
    yield "/"


def _limit(root: Path, group: str, files: GroupFiles) -> GroupLimit | None:
    """Return a group's limit; cached files count as left, since the kernel drops them on demand. None: no limit."""
    folder = root / group.strip("/")
    try:
        limit = (folder / files.limit).read_text().strip()
        if limit == "max":
            return None
        usage = int((folder / files.usage).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None  # no such version here, or a path of a namespace that this process does not see
    cached = sum(int(statistics.get(f"{files.prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return GroupLimit(group, int(limit), max(0, int(limit) - usage + cached))


def _kernel_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return total_bytes()
