"""On-demand communication beside FSDP, ours and torch's own, on samples whose lengths differ by a hundred times.

mpirun -n 3 python benchmarks/odc.py --workers 2 --devices 1

All contenders train the same model on the same minibatches, in turns, each worker pinned to a core. Results go to
benchmarks/results/odc.json; docs/odc.md has the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard

import coarse
import coarse.torch as ct
from benchmarks.contenders.gloo import open_gloo
from benchmarks.provenance import provenance
from coarse.parallel.packing.costs import Cost
from coarse.parallel.packing.measured_cost import measure_cost
from coarse.parallel.packing.sampler import Sampling
from coarse.session import current
from experiments.long_tail.lengths import MEAN_TOKENS, draw_lengths
from experiments.long_tail.model import LongTailShape, PackedBlock
from experiments.long_tail.training import LongTailTraining, MinibatchTime, agreed, step_of

RESULTS = Path(__file__).parent / "results" / "odc.json"
CONTENDERS = (
    ("odc", "lb_mini"), ("odc", "lb_micro"), ("fsdp", "lb_micro"), ("fsdp", "local_sort"), ("torch", "lb_micro"),
    ("torch", "local_sort"),
)  # fmt: skip
BASE = "fsdp + lb_micro"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--sizes", default="1,2,4,8,16", help="samples of a minibatch and worker")
    parser.add_argument("--data", choices=sorted(MEAN_TOKENS), default="longalign")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--factor", type=float, default=1 / 32)
    parser.add_argument("--cap", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=192, help="of each size's epoch, after one minibatch to warm up")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--name", default="odc", help="of the result's file")
    return parser.parse_args()


def shard(model: nn.Module, mode: str) -> nn.Module:
    """By coarse, or by torch's own FSDP2 on Gloo."""
    if mode != "torch":
        return ct.fully_shard(model, mode, units=[PackedBlock])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:  # type: ignore[union-attr]
        torch_fully_shard(block, mesh=mesh)
    torch_fully_shard(model, mesh=mesh)
    return model


def race(given: argparse.Namespace, size: int, shape: LongTailShape, cost: Cost) -> list[dict[str, object]]:
    """All contenders on one size of minibatches, in turns."""
    minibatch = size * given.workers
    num_minibatches = max(6, given.samples // minibatch + 1)
    lengths = draw_lengths(given.data, given.sigma, minibatch * num_minibatches, given.factor, given.cap, seed=size)
    trainings, plans = [], {}
    for mode, balance in CONTENDERS:
        sampling = Sampling(
            minibatch=minibatch, num_ranks=given.workers, balance=balance, cap=given.cap, cost=cost, shuffle=False,
            pad=balance != "lb_mini",
        )  # fmt: skip
        trainings.append(LongTailTraining(mode, sampling, shape, lengths, coarse.rank(), shard))
        plans[balance] = sampling
    times: dict[str, list[MinibatchTime]] = {one.name: [] for one in trainings}
    for number in range(num_minibatches):
        order = trainings[number % len(trainings) :] + trainings[: number % len(trainings)]
        for training in order:
            coarse.push_pull(np.zeros(1), name="start")  # all begin together
            found = training.step()
            assert found is not None
            if number:
                times[training.name].append(found)
    lockstep = independent = 0.0
    for number in range(1, num_minibatches):
        some = lengths[number * minibatch : (number + 1) * minibatch]
        lockstep += plans["lb_micro"].plan(some).lockstep_s(some, cost)
        independent += plans["lb_mini"].plan(some).independent_s(some, cost)
    return [row_of(name, size, found, given.workers, lockstep / independent) for name, found in times.items()]


def row_of(name: str, size: int, found: list[MinibatchTime], num_workers: int, allowed: float) -> dict[str, object]:
    """What all workers found of a contender."""
    own = np.array([[one.wall_s, one.computed_s, one.loss] for one in found])
    computed_s = coarse.push_pull(own[:, 1].copy(), name=f"computed {len(own)}", op=coarse.Sum)
    loss = coarse.push_pull(own[:, 2].copy(), name=f"loss {len(own)}", op=coarse.Sum)
    wall_s = coarse.push_pull(own[:, 0].copy(), name=f"wall {len(own)}", op=coarse.Max)
    return {
        "contender": name, "size": size, "minibatches": len(found), "wall_s": wall_s.tolist(),
        "samples_per_s": found[0].num_samples * len(found) / float(wall_s.sum()),
        "idle_share": 1 - float(computed_s.sum()) / (num_workers * float(wall_s.sum())),
        "last_loss": float(loss[-1]), "allowed_ratio": allowed,
    }  # fmt: skip


def main() -> None:
    """Race, print, write."""
    given = parse_arguments()
    coarse.init()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[coarse.rank() % len(cores)]})
    open_gloo(current().require_users_comm())
    shape = LongTailShape(layers=given.layers, width=given.width, context=given.cap)
    measured = measure_cost(step_of(shape), now_s=time.thread_time)
    cost = agreed(measured.cost)
    rows: list[dict[str, object]] = []
    for size in map(int, given.sizes.split(",")):
        before = device_cpu_s()
        rows += race(given, size, shape, cost)
        if coarse.rank() == 0:
            print_rows(rows[-len(CONTENDERS) :], device_cpu_s() - before)
    if coarse.rank() == 0:
        settings = {
            **vars(given), "cost_ms": [1e3 * cost.quadratic, 1e3 * cost.linear], "packed_off": measured.packed_share
        }
        origin = provenance("odc.py", sys.argv[1:], given.workers + given.devices)
        found = {**origin, "settings": settings, "rows": rows}
        RESULTS.with_name(f"{given.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()
    coarse.shutdown()


def device_cpu_s() -> float:
    """Processor seconds of all memory devices since their start."""
    devices = coarse.statistics(all_devices=True)["devices"]
    return sum(float(found["cpu_s"]) for found in devices.values())


def print_rows(rows: list[dict[str, object]], devices_s: float) -> None:
    """One size's table; ratios are medians over minibatches of the base's time over the contender's."""
    base = next(row for row in rows if row["contender"] == BASE)
    print(f"{rows[0]['size']} samples a worker; allowed {rows[0]['allowed_ratio']:.2f}; devices {devices_s:.1f} CPU s")
    for row in rows:
        ratios = [theirs / own for theirs, own in zip(base["wall_s"], row["wall_s"], strict=True)]  # type: ignore[call-overload]
        row["ratio"] = median(ratios)
        print(
            f"  {row['contender']:20} {row['samples_per_s']:7.2f} samples/s  idle {row['idle_share']:5.1%}  "
            f"{row['ratio']:.2f} times {BASE}  (measured)"
        )


if __name__ == "__main__":
    main()
