"""Worker 0 kills the last memory device, whose GPU's memory all have mapped, in the midst of pushes from a GPU.

Every worker writes the error it gets, and how long after the kill. Arguments: the folder to write to, and the MPI rank
to be killed in place of the last.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from coarse.gpu.available import gpus
from tests.support.claims import report_error

folder = Path(sys.argv[1])
rank, victim = MPI.COMM_WORLD.Get_rank(), int([*sys.argv, MPI.COMM_WORLD.Get_size() - 1][2])
(folder / f"pid{rank}").write_text(str(os.getpid()))
coarse.init()
array = gpus().empty(0, (100_000,), np.dtype(np.float32))
try:
    for step in range(1000):
        coarse.push_pull(array, "gradient")
        if step == 3 and coarse.rank() == 0:
            (folder / "killed").write_text(str(time.perf_counter()))
            os.kill(int((folder / f"pid{victim}").read_text()), signal.SIGKILL)
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "killed").read_text())
    report_error(folder, rank, waited_s, error)
