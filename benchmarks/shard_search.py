"""Five plans of FSDP on a cluster in a box, in the order that `coarse shard --search` gives them and as measured.

python benchmarks/shard_search.py      as root; three minutes; starts its jobs itself

Two nodes of two workers, links of 100 Mbit/s, a model of blocks whose compute is replayed (it sleeps). The simulator
has the same blocks on a machine file of these links (benchmarks/emulated_box.py). Plans differ in what is gathered
together, in F, and in what is freed behind forward; all run in one job, in turns. Replicas sum in coarse's ring, as is
simulated (MPI's all-reduce, the default, has two thirds of these links).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

from benchmarks.emulated_box import RATE_MBIT, latency_us, machine_file
from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json
from coarse.hardware.compute import Basis, ComputeProfile
from coarse.hardware.models import Layer, Model, Precision
from coarse.hardware.presets import machine_named
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.search import FoundPlan, Prefetch, ShardedPlan, search_plans
from coarse.strategy.sharding import Fsdp

NAME = "shard-search"
BLOCKS, ELEMENTS = 6, 1 << 19
"""Of float32: 2 MiB each, since the box lets a burst of some 60 kB through at once."""
COMPUTE_S = 0.5
"""Of a step."""
FORWARD_SHARE = 1 / 3
ROUNDS, NUM_WARM = 7, 1
NODES, NODE_WORKERS = 2, 2


def _plan(blocks: int, factor: int, *, reshards: bool = True) -> ShardedPlan:
    return ShardedPlan(blocks_per_unit=blocks, factor=factor, reshards=reshards, prefetch=Prefetch.BOTH)


PLANS = {
    "F=1": _plan(1, 1),
    "F=2": _plan(1, 2),
    "F=4": _plan(1, 4),
    "F=4, kept until backward": _plan(1, 4, reshards=False),
    "F=4, units of three blocks": _plan(3, 4),
}
"""By name."""


def scenario(machine: Path) -> ShardedScenario:
    """The job on a machine's file."""
    layers = tuple(
        Layer(name=f"blocks.{number}", parameters=((f"blocks.{number}.weight", (ELEMENTS,)),), flops_per_sample=1)
        for number in range(BLOCKS)
    )
    model = Model(name="replayed", sample="sample", layers=layers)
    forward_s, backward_s = COMPUTE_S * FORWARD_SHARE / BLOCKS, COMPUTE_S * (1 - FORWARD_SHARE) / BLOCKS
    profile = ComputeProfile(
        gpu="sleep", model=model.name, precision=Precision.FP32, batch=1, layers=tuple(each.name for each in layers),
        forward_s=(forward_s,) * BLOCKS, backward_s=(backward_s,) * BLOCKS, basis=Basis.MEASURED, source="replayed",
    )  # fmt: skip
    return ShardedScenario(
        machine=replace(machine_named(str(machine)), num_nodes=NODES), model_name=model.name, own_model=model,
        profile=profile, precision=Precision.FP32, policy=ShardedPolicy(sharding=Fsdp()), batch=1, num_nodes=NODES,
        gpus_per_node=NODE_WORKERS,
    )  # fmt: skip


def measure(out: Path, num_rounds: int) -> None:
    """One rank: each plan takes a step in each round; worker 0 writes the seconds of the slowest worker."""
    import torch

    import coarse
    import coarse.torch as ct
    from benchmarks.replayed import Replayed

    torch.set_num_threads(1)
    coarse.init()
    models, found = [], []
    for plan in PLANS.values():
        bare, count = Replayed(BLOCKS, ELEMENTS), plan.blocks_per_unit
        how = {"mode": plan.sharding(coarse.size()), "reshard_after_forward": plan.reshards}
        for first in range(0, BLOCKS, count):
            ct.fully_shard(list(bare.blocks[first : first + count]), **how)
        ct.fully_shard(bare, **how)
        bare.take(COMPUTE_S, FORWARD_SHARE)
        models.append((bare, torch.optim.SGD(bare.parameters(), lr=1e-3)))
    x = torch.zeros(1, requires_grad=True)
    for _ in range(num_rounds + NUM_WARM):
        row = []
        for model, optimizer in models:
            coarse.barrier()
            began_s = time.perf_counter()
            model(x).sum().backward()
            row.append(time.perf_counter() - began_s)
            optimizer.step()
            optimizer.zero_grad()
        found.append(row)
    slowest = coarse.push_pull(np.array(found[NUM_WARM:]), "shard-search/seconds", coarse.Max)
    if coarse.rank() == 0:
        out.write_text(json.dumps(slowest.tolist()), encoding="utf-8")
    coarse.shutdown()


def measured_s(num_rounds: int) -> dict[str, list[float]]:
    """By plan the seconds of each step in the box."""
    with tempfile.TemporaryDirectory() as folder:
        out, config = Path(folder) / "seconds.json", Path(folder) / "coarse.toml"
        config.write_text('worker_collective = "ring"\nstartup_timeout_s = 120.0\n', encoding="utf-8")
        command = [
            *(sys.executable, "-m", "coarse", "run", "--cluster", f"{NODES}x{NODE_WORKERS}", "--devices", "1"),
            *("--config", str(config)),
            *("--rate", f"{RATE_MBIT:g}mbit", __file__, "--measure", str(out), "--rounds", str(num_rounds)),
        ]
        subprocess.run(command, check=True, timeout=900)
        rows = np.array(json.loads(out.read_text(encoding="utf-8")))
    return {name: rows[:, place].tolist() for place, name in enumerate(PLANS)}


def predicted(machine: Path) -> dict[str, FoundPlan]:
    """By plan what a search finds of it, the fastest first."""
    found = search_plans(scenario(machine), plans=list(PLANS.values())).found
    by_plan = {plan: each for each in found for plan in (each.plan, *each.alike)}
    names = {plan: name for name, plan in PLANS.items()}
    return {names[plan]: each for plan, each in by_plan.items()}


def main() -> None:
    """Predict, measure, print a table and write benchmarks/results/shard-search.json; one rank with --measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", metavar="FILE", help="what the driver tells the ranks: where seconds go")
    options = parser.parse_args()
    if options.measure:
        measure(Path(options.measure), options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        latency = latency_us()
        ours = predicted(machine_file(Path(folder), latency))
    steps = measured_s(options.rounds)
    rows: dict[str, Any] = {
        name: {
            "simulated_s": found.report.iteration_s, "measured_s": median(steps[name]), "all_measured_s": steps[name],
            "ratio": found.report.iteration_s / median(steps[name]),
        }
        for name, found in ours.items()
    }  # fmt: skip
    order = sorted(rows, key=lambda name: float(rows[name]["measured_s"]))
    is_same = order == list(ours)
    write_json(
        NAME,
        {
            **provenance("shard_search.py", sys.argv[1:], 1), "kind": "measured and simulated", "rows": rows,
            "latency_us": latency, "simulated_order": list(ours), "measured_order": order, "is_same": is_same,
        },
    )  # fmt: skip
    lines = [
        [name, f"{row['simulated_s']:.3f}", f"{row['measured_s']:.3f}", f"{row['ratio']:.3f}"]
        for name, row in rows.items()
    ]
    print_table("Seconds of a step by plan, the fastest first", ["", "simulated", "measured", "ratio"], lines)
    print(f"\nthe measured order is {'the same' if is_same else ', '.join(order)}")


if __name__ == "__main__":
    main()
