"""Has workers wait by means that are not coarse's: elsewhere.py FOLDER KIND"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from coarse.session import current


def by_mpi(_: Path) -> None:
    """Meet in MPI's own world, after a sleep that the slowest decides."""
    for _ in range(6):
        time.sleep(1.0 + coarse.rank())
        MPI.COMM_WORLD.Allreduce(np.ones(1), np.empty(1))
        coarse.push_pull(np.ones(8, np.float32), "a")


def by_a_file(folder: Path) -> None:
    """One worker waits for a file that the other writes once it has a sum of both."""
    pipe = folder / "pipe"
    for step in range(6):
        handle = coarse.push_pull_async(np.ones(1 << 18, np.float32), "a")
        if step == 3 and coarse.rank() == 1:
            pipe.read_text()
        handle.wait()
        if step == 3 and coarse.rank() == 0:
            pipe.write_text("go on")
        os.sched_yield()


coarse.init()
{"by_mpi": by_mpi, "by_a_file": by_a_file}[sys.argv[2]](Path(sys.argv[1]))
if coarse.rank() == 0:
    print(f"took {current().require_client().link.job_clock.now_s()}", flush=True)
