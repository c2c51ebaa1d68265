"""Moves bytes, and writes what each worker's and device's own counters say of them: counted.py FOLDER KIND"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.session import current

SIZES = (1, 1000, 1 << 18)
STEPS = 4


def pushed() -> None:
    """Arrays that are copied, and gradients that lie in device memory."""
    for step in range(STEPS):
        for size in SIZES:
            coarse.push_pull(np.full(size, step, np.float32), name=f"a{size}")
    region = coarse.device_array("in place", (1 << 16,), np.float32)
    for step in range(STEPS):
        region[...] = step
        coarse.push_pull(region, name="in place")


def trained(mode: str | None) -> None:
    """A model, by an optimizer's buckets or in a sharded mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer: torch.optim.Optimizer
    if mode is None:
        optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    else:
        ct.fully_shard(model, mode=mode, units=[nn.Linear])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Do it."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    coarse.init()
    if kind == "push":
        pushed()
    else:
        trained(None if kind == "optimizer" else kind)
    coarse.barrier()
    found = coarse.statistics(all_devices=True) | {"reduced": current().require_client().link.reduced_bytes}
    (folder / f"{coarse.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
