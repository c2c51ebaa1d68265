"""Refusing a workload that doesn't fit into the machine, before the kernel ends a process for it."""

from __future__ import annotations

from pathlib import Path

_MEMORY_INFO = Path("/proc/meminfo")


def require_memory(nbytes: int, workload: str) -> None:
    """Raise MemoryError if fewer than `nbytes` are available."""
    available_bytes = available_memory_bytes(_MEMORY_INFO.read_text(encoding="utf-8"))
    if nbytes > available_bytes:
        raise MemoryError(
            f"{workload} needs {nbytes / 2**30:.1f} GiB over all ranks but only {available_bytes / 2**30:.1f} GiB are "
            "available; choose smaller --sizes and --sets"
        )


def available_memory_bytes(meminfo: str) -> int:
    """MemAvailable in the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no line 'MemAvailable' in /proc/meminfo; Linux 3.14 or later is needed")
