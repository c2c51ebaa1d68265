"""Steps of replayed compute in one mode, on links that are real or emulated: emulated_box_job.py WAY SECONDS STEPS OUT

WAY is "optimizer" or a mode of fully_shard; SECONDS of compute pass in each step, asleep. Worker 0 writes to OUT the
seconds of each step by the job's clock, which is the wall's in a live job. With WAY "ping" each step is a message of 8
bytes from the first worker to the last one, and back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch

import coarse
import coarse.torch as ct
from benchmarks.replayed import Replayed, ReplayedBlock
from coarse.session import current
from experiments.odc_paper.job import FORWARD_SHARE

BLOCKS, ELEMENTS = 6, 1 << 19
"""Of float32: 2 MiB each, since the box lets a burst of some 60 kB through at once."""


def main(way: str, seconds: float, steps: int, out: Path) -> None:
    """Train."""
    torch.set_num_threads(1)
    coarse.init()
    if way == "ping":
        _ping(steps, out)
        coarse.shutdown()
        return
    bare = Replayed(BLOCKS, ELEMENTS)
    model: torch.nn.Module = bare if way == "optimizer" else ct.fully_shard(bare, mode=way, units=[ReplayedBlock])
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if way == "optimizer":
        optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())
    clock, found = current().require_client().link.job_clock, []
    x = torch.zeros(1, requires_grad=True)
    bare.take(seconds, FORWARD_SHARE)
    coarse.barrier()
    for _ in range(steps):
        began_s = clock.now_s()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(clock.now_s() - began_s)
    if coarse.rank() == 0:
        out.write_text(json.dumps(found))
    coarse.shutdown()


def _ping(steps: int, out: Path) -> None:
    comm, message, found = coarse.workers_comm(), np.zeros(8, np.uint8), []
    last = comm.Get_size() - 1
    for _ in range(steps):
        began_s = time.perf_counter()
        if comm.Get_rank() == 0:
            comm.Send(message, last)
            comm.Recv(message, last)
        elif comm.Get_rank() == last:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        found.append(time.perf_counter() - began_s)
    if comm.Get_rank() == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
