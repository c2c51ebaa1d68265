"""Where a result comes from: the machine, the versions, the command and the date."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coarse.storage.processor import cpu_name

_PACKAGES = ("numpy", "torch", "mpi4py", "coarse")


def provenance(script: str, arguments: Sequence[str], num_processes: int) -> dict[str, object]:
    """What every result carries beside its rows; `kind` says that a real clock was read.

    One process is started without mpirun.
    """
    launcher = ["mpirun", "-n", str(num_processes)] if num_processes > 1 else []
    return {
        "benchmark": Path(script).stem,
        "kind": "measured",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([*launcher, "python", f"benchmarks/{script}", *arguments]),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, object]:
    """Processor, usable cores and memory of this machine."""
    return {
        "cpu_model": cpu_name(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Python, MPI and the packages that are measured."""
    from mpi4py import MPI

    found = {"python": sys.version.split()[0], "mpi": MPI.Get_library_version().split(",")[0].strip("\0 \n")}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
