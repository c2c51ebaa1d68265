"""Minibatches of 8 workers on two nodes, emulated, and the same simulated by the same machines.

python benchmarks/odc_emulated.py      as root; five minutes; starts its jobs itself

Compute is replayed (each worker sleeps as long as sail-sg/odc measured a 1.5B model on an A100 for samples of such
lengths); bytes cross the links of a cluster in a box. Bytes and rates are both divided by one factor, which is printed,
so that times are those of the model and the links that are named. Results go to benchmarks/results/odc-emulated.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.provenance import provenance
from coarse.parallel.packing.costs import QWEN_1_5B
from coarse.strategy.sharding import Sum
from experiments.long_tail.lengths import draw_lengths
from experiments.odc_paper.job import Job

RESULTS = Path(__file__).parent / "results" / "odc-emulated.json"
NODES, WORKERS_OF_NODE = 2, 4
MODEL_ELEMENTS = 1_540_000_000
"""Qwen2.5 1.5B."""
REAL_BYTES = 2
"""Of an element as gathered and as reduced: bfloat16. The emulated ones are float32, of half as many elements."""
PAYLOAD = 1448 / 1514
"""Of a full Ethernet frame that TCP fills."""
CAP = 65_536
WAYS: dict[str, dict[str, Any]] = {
    "fsdp + lb_micro": {"mode": "fsdp"}, "odc + lb_micro": {"mode": "odc"}, "odc + lb_mini": {"mode": "odc"},
    "odc, cache + lb_mini": {"mode": "odc", "cache": True},
    "odc, cache, float32 + lb_mini": {"mode": "odc", "cache": True, "sum": "float32"},
}  # fmt: skip


def emulated(order: dict[str, Any], rate_mbit: float) -> list[list[float]]:
    """Seconds by way and minibatch."""
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder, "order.json"), Path(folder, "out.json")
        asked.write_text(json.dumps(order))
        job = Path(__file__).with_name("odc_replay.py")
        command = [
            sys.executable, "-m", "coarse", "run", "--cluster", f"{NODES}x{WORKERS_OF_NODE}", "--devices", "1",
            "--rate", f"{rate_mbit:.1f}mbit", str(job), str(asked), str(out),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=1800)
        found: list[list[float]] = json.loads(out.read_text())
    return found


def rows_at(gbit: float, given: argparse.Namespace) -> list[dict[str, Any]]:
    """All ways on nodes with one such link each."""
    elements = given.units * given.elements
    factor = MODEL_ELEMENTS * REAL_BYTES / (4 * elements)
    rate_mbit = 1000 * gbit / factor
    job = Job(
        num_workers=NODES * WORKERS_OF_NODE, workers_of_node=WORKERS_OF_NODE, cost=QWEN_1_5B, num_units=given.units,
        unit_elements=given.elements, node_bytes_per_s=1e6 * rate_mbit / 8 * PAYLOAD,
    )  # fmt: skip
    print(
        f"{gbit:g} Gbit/s a node: bytes and rates divided by {factor:.0f}, {4 * elements / 1e6:.2f} MB in "
        f"{given.units} units at {rate_mbit:.1f} Mbit/s"
    )
    size = given.size * job.num_workers
    drawn = draw_lengths("longalign", given.sigma, size * given.minibatches, 1.0, CAP, given.seed)
    lengths = [drawn[begin : begin + size] for begin in range(0, len(drawn), size)]
    costs = {way: job.costs(job.balanced(way.split(" + ")[1], CAP, lengths), lengths) for way in WAYS}
    order = {
        "num_units": given.units, "unit_elements": given.elements,
        "ways": [{"options": options, "costs": costs[way]} for way, options in WAYS.items()],
    }  # fmt: skip
    rows = []
    for (way, options), seconds in zip(WAYS.items(), emulated(order, rate_mbit), strict=True):
        simulated_s, free_s = (
            one.fsdp_s(costs[way], is_reduce_awaited=True)[0]
            if options["mode"] == "fsdp"
            else one.odc_s(costs[way], cache=options.get("cache", False), sums=Sum(options.get("sum", "int64")))[0]
            for one in (job, replace(job, node_bytes_per_s=Job.node_bytes_per_s))
        )
        rows.append({
            "gbit": gbit, "way": way, "factor": factor, "emulated_s": seconds, "simulated_s": simulated_s,
            "free_s": free_s,
        })  # fmt: skip
    base = sum(rows[0]["emulated_s"])
    for row in rows:
        took = sum(row["emulated_s"])
        print(
            f"  {row['way']:30} {took:7.2f} s (emulated), {row['simulated_s']:7.2f} s (simulated, "
            f"{row['simulated_s'] / took - 1:+.1%}), {row['free_s']:7.2f} s without communication; "
            f"{base / took - 1:+.0%} over fsdp + lb_micro",
            flush=True,
        )
    return rows


def main() -> None:
    """Both networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", default="800,100,25", help="of a node's link")
    parser.add_argument("--units", type=int, default=7)
    parser.add_argument("--elements", type=int, default=1 << 16, help="of a unit")
    parser.add_argument("--size", type=int, default=4, help="samples of a minibatch and worker")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--minibatches", type=int, default=3)
    given = parser.parse_args()
    rows = [row for gbit in given.gbit.split(",") for row in rows_at(float(gbit), given)]
    found = {**provenance("odc_emulated.py", sys.argv[1:], 1), "kind": "emulated and simulated", "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
