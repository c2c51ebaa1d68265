"""Every rank waits for a message that nobody sends, after it has put a file into the folder of the first argument."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI


def wait_for_nothing() -> None:
    (Path(sys.argv[1]) / str(MPI.COMM_WORLD.Get_rank())).touch()
    MPI.COMM_WORLD.Recv(np.empty(1), source=MPI.ANY_SOURCE)


wait_for_nothing()
