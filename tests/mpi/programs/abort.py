"""Rank 1 aborts while the others are outside MPI; each rank first writes its process id into a folder."""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI

rank = MPI.COMM_WORLD.Get_rank()
(Path(sys.argv[1]) / str(rank)).write_text(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
if rank == 1:
    MPI.COMM_WORLD.Abort(7)
signal.pause()
