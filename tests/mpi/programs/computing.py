"""Worker 1 kills a memory device while the others compute, waiting for nothing."""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI

import coarse

folder = Path(sys.argv[1])
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))
coarse.init()
coarse.barrier()
if coarse.rank() == 1:
    os.kill(int((folder / f"pid{MPI.COMM_WORLD.Get_size() - 1}").read_text()), signal.SIGKILL)
while True:
    sum(range(1000))
