"""What torchrun starts: a worker that finds its place beside the memory devices, and ends as the argument says."""

import os
import signal
import sys

how = sys.argv[1]
is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
if how.startswith("dies after") and is_last:
    signal.sigtimedwait([], float(how.split()[2]))
    os._exit(5)
if how == "is killed":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which torchrun would end this worker before it says who died
if how == "MPI first":
    import mpi4py.MPI  # noqa: F401
import numpy as np  # noqa: E402

import coarse  # noqa: E402

coarse.init()
rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
assert (coarse.rank(), coarse.size(), coarse.local_rank()) == (rank, size, local_rank)
assert coarse.push_pull(np.full(3, rank, np.float32), "mean").tolist() == [(size - 1) / 2] * 3
assert os.environ["OMPI_COMM_WORLD_SIZE"] == str(size)
from mpi4py import MPI  # noqa: E402

total = np.ones(1)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert total[0] == size
if how == "process group":
    import torch
    import torch.distributed as dist

    dist.init_process_group("coarse")
    total = torch.full((3,), float(rank))
    dist.all_reduce(total)
    assert total.tolist() == [size * (size - 1) / 2] * 3
    dist.destroy_process_group()
if is_last and how == "raises":
    raise ArithmeticError("the worker is broken")
if is_last and how == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
coarse.barrier()
print(f"worker {rank} ends\n", end="", flush=True)
