"""Worker 0 kills worker 1 amid a training on GPUs, for which stand-ins stand here.

The other workers write the error they get, and how long after the kill. Arguments: the folder to write to, and what
trains: "optimizer", "group" or "sharded".
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from mpi4py import MPI

import coarse
import coarse.torch as ct
from tests.support.claims import report_error
from tests.support.gpu_torch import collectives_on_gpu, cuda, stand_in_for_cuda, to_cuda

VICTIM, STEPS = 1, 1000


def optimizer_step() -> Callable[[], None]:
    net = to_cuda(torch.nn.Linear(300, 300))
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())

    def step() -> None:
        net(cuda(torch.ones(2, 300))).sum().backward()
        optimizer.step()

    return step


def group_step() -> Callable[[], None]:
    dist.init_process_group("coarse")
    tensor = cuda(torch.ones(100_000))
    return lambda: dist.all_reduce(tensor)


def sharded_step() -> Callable[[], None]:
    net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    ct.fully_shard(net, "fsdp", collective="ring")
    return lambda: net(torch.ones(2, 64)).sum().backward()


STEP_OF = {"optimizer": optimizer_step, "group": group_step, "sharded": sharded_step}

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), MPI.COMM_WORLD.Get_rank()
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    coarse.init()
    stand_in_for_cuda()
    try:
        with collectives_on_gpu():
            step = STEP_OF[sys.argv[2]]()
            for number in range(STEPS):
                step()
                if number == 5 and coarse.rank() == 0:
                    (folder / "killed").write_text(str(time.perf_counter()))
                    os.kill(int((folder / f"pid{VICTIM}").read_text()), signal.SIGKILL)
    except coarse.CoarseError as error:
        waited_s = time.perf_counter() - float((folder / "killed").read_text())
        report_error(folder, coarse.rank(), waited_s, error)
