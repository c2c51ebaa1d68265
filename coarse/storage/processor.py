"""Facts of the kernel about this machine's processor: its features, and its last-level caches' size."""

import os
import platform
from collections.abc import Collection
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_flags() -> frozenset[str]:
    """Return the processor's features, by the kernel's names; empty where the kernel has none."""
    return frozenset(_of_cpuinfo("flags").split())


def cpu_name() -> str:
    """Return the kernel's name of the processor; the architecture where it has none."""
    return _of_cpuinfo("model name") or platform.machine()


def _of_cpuinfo(wanted: str) -> str:
    """Return the first value of a key in /proc/cpuinfo; empty where there is none."""
    for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return value.strip()
    return ""


def last_level_bytes(cpus: Collection[int] | None = None) -> int:
    """Return the bytes of all last-level caches of some cores; 0 where they are not told.

    The cores are by default those of this process.
    """
    caches: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0) if cpus is None else cpus):
        found = [_cache(folder) for folder in (_CPUS / f"cpu{cpu}" / "cache").glob("index*")]
        if found:
            _, nbytes, sharers = max(found)
            caches[sharers] = nbytes
    return sum(caches.values())


def _cache(folder: Path) -> tuple[int, int, str]:
    """Return (level, bytes, cores that share it); all zero where one of them cannot be read."""
    try:
        level, size, sharers = ((folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        return int(level), int(size[:-1]) * _UNITS[size[-1]], sharers
    except (OSError, ValueError, KeyError, IndexError):
        return 0, 0, ""
