"""Rank 1 of a process group dies while the others wait for it in a collective, in a message, and for a future."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import coarse.torch  # noqa: F401  which registers the backend
from tests.support.claims import report_error

folder = Path(sys.argv[1])
dist.init_process_group("coarse")
rank = dist.get_rank()
dist.barrier()
if rank == 1:
    (folder / "killed").write_text(str(time.perf_counter()))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1000))
    elif rank == 2:
        dist.recv(torch.ones(1000), 1)
    else:
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()
except Exception as error:
    waited_s = time.perf_counter() - float((folder / "killed").read_text())
    report_error(folder, rank, waited_s, error)
