"""Ranks of `two_trees.py`: they run one case whenever they are told, and answer how long an operation took.

two_trees_job.py SOCKET BUCKETS: the socket on which to be told, and the elements of each workload's buckets as JSON.

coarse is that of the tree that PYTHONPATH names, of which only what is public is used; all else is of this tree.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import coarse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # once coarse is there: its tree has such packages too

from benchmarks.start_line import StartLine, open_start_line
from benchmarks.world import World, abort_on_error, on_workers, open_world

if TYPE_CHECKING:
    from torch import Tensor

NUM_WORKERS, NUM_DEVICES = 2, 2
COPY, DEVICE, STEP = "coarse, copy", "coarse, device", "coarse, step"
_SEED = 1


def exchange(workload: str, numels: list[int], way: str) -> Callable[[], None]:
    """The sum of float32 buckets of so many elements, all at once; in this process's memory or in a device's."""
    names = [f"{workload}/{way}/{number}" for number in range(len(numels))]
    if way == COPY:
        buckets = [np.ones(numel, np.float32) for numel in numels]
    else:
        buckets = [
            coarse.device_array(name, (numel,), np.float32, op=coarse.Sum)
            for name, numel in zip(names, numels, strict=True)
        ]
        for bucket in buckets:
            bucket[:] = 1
    outs = [{"out": bucket} if way == COPY else {} for bucket in buckets]

    def run() -> None:
        handles = [
            coarse.push_pull_async(bucket, name, op=coarse.Sum, **out)
            for bucket, name, out in zip(buckets, names, outs, strict=True)
        ]
        for handle in handles:
            handle.wait()

    return run


def training_step(num_rows: int) -> Callable[[], None]:
    """A step of the demo's GPT on a batch of so many rows, with gradients summed by coarse."""
    import torch

    import coarse.torch as ct
    from experiments.gpt.model import NUM_BYTES, Gpt, GptShape

    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    model = Gpt(GptShape())
    ct.broadcast_parameters(model.named_parameters(), root_rank=0)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = ct.DistributedOptimizer(adamw, model.named_parameters())
    generator = torch.Generator().manual_seed(_SEED + ct.rank())
    text = torch.randint(NUM_BYTES, (num_rows, GptShape().context + 1), generator=generator)

    def run(tokens: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()

    return partial(run, text[:, :-1].contiguous(), text[:, 1:].contiguous())


def seconds_of(run: Callable[[], None], num_operations: int, start_line: StartLine) -> float:
    """Of one operation; one before them brings the data back into the caches and isn't timed."""
    run()
    start_line.start_together()
    start_s = time.perf_counter()
    for _ in range(num_operations):
        run()
    return (time.perf_counter() - start_s) / num_operations


def serve(world: World, path: str, buckets: dict[str, list[int]]) -> None:
    """Answer the lines that come, each a workload, a way and a number of operations, until there are no more."""
    assert world.workers is not None
    start_line = open_start_line(world.workers)
    runs: dict[tuple[str, str], Callable[[], None]] = {}
    with socket.socket(socket.AF_UNIX) as told, told.makefile("rw", encoding="utf-8") as lines:
        told.connect(path)
        for line in iter(lines.readline, ""):
            workload, way, num_operations = json.loads(line)
            run = runs.get((workload, way))
            if run is None:
                run = training_step(int(workload)) if way == STEP else exchange(workload, buckets[workload], way)
                runs[workload, way] = run
            print(json.dumps(seconds_of(run, num_operations, start_line)), file=lines, flush=True)


def main(path: str, buckets: str) -> None:
    """Workers serve the driver, devices the workers."""
    with abort_on_error():
        world = open_world(NUM_WORKERS, NUM_DEVICES)
        on_workers(world, partial(serve, world, path, json.loads(buckets)), uses_coarse=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
