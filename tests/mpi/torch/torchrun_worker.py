"""What torchrun starts: a worker that finds its place beside the memory devices, and ends as the argument says."""

import os
import signal
import sys

how = sys.argv[1]
if how.startswith("dies after") and os.environ["RANK"] == "1":
    signal.sigtimedwait([], float(how.split()[2]))
    os._exit(5)
if how == "MPI first":
    import mpi4py.MPI  # noqa: F401
import numpy as np  # noqa: E402

import coarse  # noqa: E402

coarse.init()
rank = int(os.environ["RANK"])
assert (coarse.rank(), coarse.size(), coarse.local_rank()) == (rank, 2, rank)
assert coarse.push_pull(np.full(3, rank, np.float32), "mean").tolist() == [0.5] * 3
assert os.environ["OMPI_COMM_WORLD_SIZE"] == "2"
from mpi4py import MPI  # noqa: E402

total = np.ones(1)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert total[0] == 2
if how == "process group":
    import torch
    import torch.distributed as dist

    dist.init_process_group("coarse")
    total = torch.full((3,), float(rank))
    dist.all_reduce(total)
    assert total.tolist() == [1.0] * 3
    dist.destroy_process_group()
if rank == 1 and how == "raises":
    raise ArithmeticError("the worker is broken")
if rank == 1 and how == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
coarse.barrier()
print(f"worker {rank} ends\n", end="", flush=True)
