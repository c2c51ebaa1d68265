"""Trains with parameters in device memory, and prints what a few operations on them take: touched.py FOLDER"""

import json
import sys
from pathlib import Path

import torch

import coarse.torch as ct
from coarse.session import current

NUMEL = 1 << 20
"""Elements of the parameter, and of the optimizer's one state."""

ct.init()
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(NUMEL // 64, 64))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
optimizer = ct.DistributedOptimizer(optimizer, [("weight", weight)], parameters_in_device_memory=True)
link = current().require_client().link
clock, found = link.job_clock, {}


def timed(name: str, call: object) -> None:
    """Do something between two looks at the clock, which end stretches of compute."""
    ct.barrier()
    began_s = clock.now_s()
    call()
    if link.point is not None:
        link.point(name)
    found[name] = clock.now_s() - began_s


with torch.no_grad():
    timed("load", lambda: weight + 1.0)
    timed("twice", lambda: (weight + 1.0, weight * 2.0))
    timed("view", lambda: weight.view(-1).t())
    timed("store", lambda: weight.copy_(torch.zeros(NUMEL // 64, 64)))
    timed("both", lambda: weight.add_(1.0))
    timed("rows", lambda: torch.nn.functional.embedding(torch.arange(16), weight))
for _ in range(6):
    optimizer.zero_grad()
    (weight * torch.ones(64)).square().sum().backward()
    optimizer.step()
found["weight"] = float(weight.detach()[0, 0])
Path(sys.argv[1], f"{ct.rank()}.json").write_text(json.dumps(found))
