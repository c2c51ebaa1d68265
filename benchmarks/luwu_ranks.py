"""What LuWu's benchmarks share: ranks under mpirun, and what an optimizer node says of its steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

from coarse.launch.mpirun import AppContext, mpirun_argv, mpirun_beside

_MIB = 1 << 20
BACKWARD_SHARE = 2 / 3
"""Of a replayed step's compute: backward takes twice as long as forward."""


def run_ranks(num_ranks: int, *command: object, exports: Mapping[str, str] | None = None) -> None:
    """So many ranks of a Python program, until they have ended."""
    line = mpirun_argv(
        mpirun_beside(sys.executable, os.environ),
        [AppContext(num_ranks=num_ranks, command=(sys.executable, *map(str, command)))],
        exports=exports or {},
        as_root=os.geteuid() == 0,
        fault_tolerant=False,
    )
    subprocess.run(line, check=True)


def planned_bytes(told: str) -> tuple[int, int]:
    """What a step reads and writes, by what an optimizer node says when a model opens."""
    numbers = re.search(r"reads ([\d,.]+) MiB and writes ([\d,.]+) MiB", told)
    assert numbers is not None, told
    read, written = (round(float(one.replace(",", "")) * _MIB) for one in numbers.groups())
    return read, written
