"""Worker 0 (1 where that is the victim) kills the MPI rank that the second argument names.

Every worker that lives on writes the error it gets, and how long after the kill.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from tests.support.claims import report_error

folder, victim = Path(sys.argv[1]), int(sys.argv[2])
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))
coarse.init()
try:
    for step in range(4):
        coarse.push_pull(np.full(5, step), "before", coarse.Sum)
    if coarse.rank() == (1 if victim == 0 else 0):
        (folder / "killed").write_text(str(time.perf_counter()))
        os.kill(int((folder / f"pid{victim}").read_text()), signal.SIGKILL)
    while True:
        coarse.push_pull(np.ones(5), "after")
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "killed").read_text())
    report_error(folder, rank, waited_s, error)
