"""Minibatches whose compute is replayed (emulated: it sleeps), by fsdp and odc, over links that are real.

Started by benchmarks/odc_emulated.py, by coarse run: ORDER.json OUT.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch

import coarse
import coarse.torch as ct
from benchmarks.replayed import Replayed, ReplayedBlock
from coarse.protocol.clock import WallClock
from experiments.odc_paper.job import FORWARD_SHARE


def replayed(order: dict[str, Any], way: dict[str, Any]) -> list[float]:
    """Seconds of each minibatch, after one of no compute; `way`: options of fully_shard, and seconds by minibatch,
    worker and microbatch."""
    model = bare = Replayed(order["num_units"], order["unit_elements"])
    model = ct.fully_shard(model, units=[ReplayedBlock], **way["options"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock, found = WallClock(), []
    x = torch.zeros(1, requires_grad=True)
    for minibatch in [[[0.0]] * coarse.size(), *way["costs"]]:
        coarse.barrier()
        began_s = clock.now_s()
        for seconds in minibatch[coarse.rank()]:
            bare.take(seconds, FORWARD_SHARE)
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        coarse.barrier()
        found.append(clock.now_s() - began_s)
    ct.release_caches(model)
    return found[1:]


def main() -> None:
    """All ways of one order."""
    order, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    coarse.init()
    torch.set_num_threads(1)
    seconds = [replayed(order, way) for way in order["ways"]]
    if coarse.rank() == 0:
        out.write_text(json.dumps(seconds))
    coarse.shutdown()


if __name__ == "__main__":
    main()
