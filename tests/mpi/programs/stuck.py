"""Every rank waits for a message that nobody sends."""

import numpy as np
from mpi4py import MPI


def wait_for_nothing() -> None:
    MPI.COMM_WORLD.Recv(np.empty(1), source=MPI.ANY_SOURCE)


wait_for_nothing()
