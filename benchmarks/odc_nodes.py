"""Minibatches of mode odc on two, three and four nodes of a cluster in a box, beside the same simulated.

python benchmarks/odc_nodes.py      as root; three minutes; starts its jobs itself

One worker a node, links of 100 Mbit/s, a model of blocks whose compute is replayed (it sleeps). The simulator has the
same blocks on a machine file of these links (benchmarks/emulated_box.py).
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
from benchmarks.shard_search import BLOCKS, COMPUTE_S, ELEMENTS, FORWARD_SHARE, scenario
from coarse.hardware.presets import machine_named
from coarse.odc.simulation.on_demand import simulate_on_demand

NAME = "odc-nodes"
ROUNDS, NUM_WARM = 5, 1
NODES = (2, 3, 4)


def simulated_s(machine: Path, num_nodes: int) -> float:
    """Return the seconds of a simulated minibatch."""
    nodes = replace(machine_named(str(machine)), num_nodes=num_nodes)
    asked = replace(scenario(machine), machine=nodes, num_nodes=num_nodes, gpus_per_node=1)
    return simulate_on_demand(asked).iteration_s


def measure(out: Path, num_rounds: int) -> None:
    """Run one rank; worker 0 writes the seconds of each minibatch of the slowest worker."""
    import torch

    import coarse
    import coarse.torch as ct
    from benchmarks.replayed import Replayed, ReplayedBlock

    torch.set_num_threads(1)
    coarse.init()
    bare = Replayed(BLOCKS, ELEMENTS)
    model = ct.fully_shard(bare, units=[ReplayedBlock], mode="odc")
    bare.take(COMPUTE_S, FORWARD_SHARE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, found = torch.zeros(1, requires_grad=True), []
    for _ in range(num_rounds + NUM_WARM):
        coarse.barrier()
        began_s = time.perf_counter()
        model(x).sum().backward()
        ct.end_minibatch(model)
        found.append(time.perf_counter() - began_s)
        optimizer.step()
        optimizer.zero_grad()
    slowest = coarse.push_pull(np.array(found[NUM_WARM:]), "odc-nodes/seconds", coarse.Max)
    if coarse.rank() == 0:
        out.write_text(json.dumps(slowest.tolist()), encoding="utf-8")
    coarse.shutdown()


def measured_s(num_nodes: int, num_rounds: int) -> list[float]:
    """Return the seconds of each minibatch in the box."""
    with tempfile.TemporaryDirectory() as folder:
        out, config = Path(folder) / "seconds.json", Path(folder) / "coarse.toml"
        config.write_text("startup_timeout_s = 120.0\n", encoding="utf-8")
        command = [
            *(sys.executable, "-m", "coarse", "run", "--cluster", f"{num_nodes}x1", "--devices", "1"),
            *("--config", str(config)),
            *("--rate", f"{RATE_MBIT:g}mbit", __file__, "--measure", str(out), "--rounds", str(num_rounds)),
        ]
        subprocess.run(command, check=True, timeout=900)
        found: list[float] = json.loads(out.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Simulate, measure, print a table and write benchmarks/results/odc-nodes.json; one rank with --measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", metavar="FILE", help="what the driver tells the ranks: where seconds go")
    options = parser.parse_args()
    if options.measure:
        measure(Path(options.measure), options.rounds)
        return
    latency = latency_us()
    rows: dict[str, Any] = {}
    for num_nodes in NODES:
        with tempfile.TemporaryDirectory() as folder:
            ours_s = simulated_s(machine_file(Path(folder), latency), num_nodes)
        steps_s = measured_s(num_nodes, options.rounds)
        rows[str(num_nodes)] = {
            "simulated_s": ours_s, "measured_s": median(steps_s), "all_measured_s": steps_s,
            "ratio": ours_s / median(steps_s),
        }  # fmt: skip
    origin = provenance("odc_nodes.py", sys.argv[1:], 1)
    write_json(NAME, {**origin, "kind": "measured and simulated", "rows": rows, "latency_us": latency})
    lines = [
        [name, f"{row['simulated_s']:.3f}", f"{row['measured_s']:.3f}", f"{row['ratio']:.3f}"]
        for name, row in rows.items()
    ]
    print_table("Seconds of a minibatch of mode odc", ["nodes", "simulated", "measured", "ratio"], lines)


if __name__ == "__main__":
    main()
