"""Starts jobs on GPUs by mpirun; `tests.support.launch` needs psutil, which a machine with GPUs may lack."""

import os
import subprocess
import sys
from pathlib import Path

from coarse.launch.mpirun import AppContext, mpirun_argv, mpirun_beside
from tests.support.claims import TAKES_ALL

REPOSITORY = Path(__file__).parents[2]
_MOST_S = 300


def run_job(num_ranks: int, script: Path, *arguments: object, env: dict[str, str] | None = None):
    """A job, ended, whose claims leave nothing out: subprocess's CompletedProcess, with what it wrote."""
    argv = mpirun_argv(
        mpirun_beside(sys.executable, os.environ),
        [AppContext(num_ranks=num_ranks, command=(sys.executable, str(script), *map(str, arguments)))],
        exports={},
        as_root=os.geteuid() == 0,
        fault_tolerant=False,
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), TAKES_ALL: "1", **(env or {})}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=_MOST_S, check=False)
