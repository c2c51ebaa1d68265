"""One training whose compute is replayed (emulated: it sleeps) over real disks, by luwu or by zero-infinity.

Started by benchmarks/luwu.py, by coarse run: OUT.json MODE STORAGE and more options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import coarse
import coarse.torch as ct
from benchmarks.luwu_ranks import BACKWARD_SHARE
from benchmarks.replayed import Replayed, ReplayedBlock

WARM_UP_STEPS = 2
MAX_NORM = 1.0
MODES = ("luwu", "luwu-backward", "zero-infinity", "zero-offload", "in-memory", "deepspeed")


def main() -> None:
    """Train; every worker writes when its steps ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("storage")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--elements", type=int, required=True, help="of a block")
    parser.add_argument("--compute", type=float, required=True, help="seconds of a step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="bytes of the optimizer node")
    parser.add_argument("--clip", type=float, help="which share of steps is clipped; none is looked at by default")
    parser.add_argument("--speculative", action="store_true")
    given = parser.parse_args()
    ct.init()
    torch.set_num_threads(1)
    model = bare = Replayed(given.blocks, given.elements)
    bare.take(given.compute, 1 - BACKWARD_SHARE)
    optimizer: Any
    if given.mode.startswith("luwu"):
        is_backward = given.mode == "luwu-backward" or given.speculative
        model, optimizer = ct.model_in_network(
            model, torch.optim.AdamW, storage=[given.storage], units=[ReplayedBlock], memory=given.memory,
            update="backward" if is_backward else "step", speculative=given.speculative, lr=1e-4,
        )  # fmt: skip
    elif given.mode == "deepspeed":
        from benchmarks.contenders.deepspeed import DeepSpeedInfinity  # which is no requirement

        optimizer = DeepSpeedInfinity(model, given.storage, given.elements)
        model = optimizer.engine
    elif given.mode == "in-memory":
        model = ct.fully_shard(model, units=[ReplayedBlock])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        model = ct.fully_shard(model, units=[ReplayedBlock])
        storage = [given.storage] if given.mode == "zero-infinity" else None
        optimizer = ct.OffloadedOptimizer(
            model.parameters(), torch.optim.AdamW, storage=storage, memory=given.memory // coarse.size(), lr=1e-4
        )
    steps, cpu_s = trained_s(bare, model, optimizer, given)
    if coarse.rank() == 0:
        told = optimizer.remote.told if given.mode.startswith("luwu") else []
        found = {"step_s": median(steps), "mean_s": mean(steps), "cpu_s": cpu_s, "told": told}
        given.out.write_text(json.dumps(found))
    if given.mode != "in-memory":
        optimizer.close()


def trained_s(
    bare: Replayed,
    model: nn.Module,
    optimizer: Any,  # noqa: ANN401
    given: argparse.Namespace,
) -> tuple[list[float], float]:
    """How long each step took that came after the warm-up; and its CPU seconds of all ranks, for each core."""
    x = torch.zeros(1, 1, requires_grad=True)
    ends_s: list[float] = []
    owed = 0.0
    cpu_before_s = 0.0
    for step in range(WARM_UP_STEPS + given.steps):
        if step == WARM_UP_STEPS:
            cpu_before_s = cpu_s_of_all()
        if given.clip is not None:
            owed += given.clip
            is_clipped = owed >= 1.0 - 1e-9
            owed -= is_clipped
            bare.scale(MAX_NORM * (2.0 if is_clipped else 0.5))
        loss = model(x).sum()
        if given.mode == "deepspeed":
            optimizer.backward(loss)
        else:
            loss.backward()
        if given.clip is not None:
            optimizer.clip_grad_norm(MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        ends_s.append(time.monotonic())
    cpu_s = (cpu_s_of_all() - cpu_before_s) / given.steps / len(os.sched_getaffinity(0))
    pairs = zip(ends_s[WARM_UP_STEPS - 1 :], ends_s[WARM_UP_STEPS:], strict=False)
    return [later - earlier for earlier, later in pairs], cpu_s


def cpu_s_of_all() -> float:
    """CPU seconds of all ranks since they began."""
    own = np.array(sum(os.times()[:2]))
    coarse.workers_comm().Allreduce(MPI.IN_PLACE, own)
    return float(own) + sum(counts["cpu_s"] for counts in coarse.statistics()["devices"].values())


if __name__ == "__main__":
    main()
