"""MPI without coarse, in the way that the first argument names; the second is a folder to write into.

"ring": each rank's number goes once around the ring, and rank 0 says whether everybody saw every number.
"stuck": every rank waits for a message that nobody sends, after it has put a file into the folder.
"abort": rank 1 aborts while the others are outside MPI; each rank first writes its process id into the folder.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, num_ranks = comm.Get_rank(), comm.Get_size()


def pass_tokens() -> None:
    seen = np.zeros(num_ranks, np.int64)
    token = np.array([rank], np.int64)
    for _ in range(num_ranks):
        arrived = np.empty_like(token)
        comm.Sendrecv(token, dest=(rank + 1) % num_ranks, recvbuf=arrived, source=(rank - 1) % num_ranks)
        token = arrived
        seen[token[0]] += 1
    complete = np.array([(seen == 1).all()], np.int32)
    comm.Allreduce(MPI.IN_PLACE, complete, op=MPI.MIN)
    if rank == 0:
        print(f"{num_ranks} ranks, complete {bool(complete[0])}")


def wait_for_nothing(folder: Path) -> None:
    (folder / str(rank)).touch()
    comm.Recv(np.empty(1), source=MPI.ANY_SOURCE)


def abort(folder: Path) -> None:
    (folder / str(rank)).write_text(str(os.getpid()))
    comm.Barrier()
    if rank == 1:
        comm.Abort(7)
    signal.pause()


if sys.argv[1] == "ring":
    pass_tokens()
elif sys.argv[1] == "stuck":
    wait_for_nothing(Path(sys.argv[2]))
elif sys.argv[1] == "abort":
    abort(Path(sys.argv[2]))
