"""ODC's rows on clusters that are not here (simulated): by the live machines, with costs that its authors measured.

Compute is a s^2 + b s of a sample of s tokens (sail-sg/odc's measurement of a 7B model on an A100). Lengths are
log-normal with the data sets' means; sigma, the cap of 65,536 tokens and all of RL's lengths are assumptions. Every
number of the paper is "up to", over sets that it does not list: ours is the largest over our own set. The tables:

balance        communication takes no time, so a row is what balance alone gives
communication  the paper's nodes, of 8 GPUs with 800 Gbit/s, and a tenth of it; reading within a node is taken as hidden
rl             verl's way: as many samples on each worker, mode fsdp with equally many microbatches
thousand       1,024 workers with communication (python benchmarks/odc_paper.py --tables thousand; four minutes)

Results go to benchmarks/results/odc-paper.json, and to odc-paper-thousand.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.provenance import provenance
from coarse.parallel.packing.costs import QWEN_7B
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum
from experiments.long_tail.lengths import SIGMAS
from experiments.odc_paper.balance import (
    BASE,
    CAP,
    NUM_MINIBATCHES,
    RL_BASE,
    SIZES,
    WORKERS_OF_NODE,
    Row,
    drawn,
    most_gain,
    points,
    put,
    rl_points,
    rolled,
    tuned,
    ways_of,
)
from experiments.odc_paper.job import Job

RESULTS = Path(__file__).parent / "results" / "odc-paper.json"
MODEL_ELEMENTS = 7_600_000_000
NUM_UNITS = {8: 28, 32: 14, 1024: 2}
"""By workers: 28 layers in so many units, so that a thousand workers take minutes."""
GBITS = (800, 80)


def balance_rows() -> list[Row]:
    """Seconds of each way, and idle shares, where communication takes no time; of 128 workers, too."""
    return [_told(tuned(point)) for point in points((8, 32, 128), SIGMAS)]


def rl_rows() -> list[Row]:
    """Responses of unequal length, as many on each worker, whichever the mode."""
    return [_told(rolled(point)) for point in rl_points(SIGMAS)]


def _told(row: Row) -> Row:
    print(said(row), flush=True)
    return row


def communication_rows() -> list[Row]:
    """The same with links that take time, of 7B in bfloat16."""
    points = [(num_workers, gbit, size) for num_workers in (8, 32) for gbit in GBITS for size in SIZES]
    return [communication_row(*point) for point in points]


def thousand_rows() -> list[Row]:
    """Of 1,024 workers."""
    return [communication_row(1024, GBITS[0], 4)]


def communication_row(num_workers: int, gbit: int, size: int) -> Row:
    """One point of nodes with such links."""
    num_units = NUM_UNITS[num_workers]
    job = Job(
        num_workers=num_workers, workers_of_node=WORKERS_OF_NODE, cost=QWEN_7B, num_units=num_units,
        unit_elements=MODEL_ELEMENTS // num_units, gathered_bytes=2, gradient_type=DType.BFLOAT16,
        node_bytes_per_s=gbit / 8 * 1e9,
    )  # fmt: skip
    row: Row = {"data": "longalign", "sigma": 1.0, "workers": num_workers, "size": size, "gbit": gbit}
    lengths = drawn("longalign", 1.0, size * num_workers, min(4, NUM_MINIBATCHES[num_workers]), seed=size)
    costs = {way: job.costs(job.balanced(way, CAP, lengths), lengths) for way in ("lb_micro", "lb_mini")}
    put(row, BASE, job.fsdp_s(costs["lb_micro"]))
    put(row, "odc, cache + lb_mini", job.odc_s(costs["lb_mini"], cache=True))
    if num_workers < max(NUM_UNITS):
        put(row, "odc, cache, float32 + lb_mini", job.odc_s(costs["lb_mini"], cache=True, sums=Sum.FLOAT32))
        put(row, "odc + lb_mini", job.odc_s(costs["lb_mini"]))
    return _told(row)


def said(row: Row) -> str:
    """A line."""
    base = row[RL_BASE if RL_BASE in row else BASE]
    gains = ", ".join(f"{way} {base / row[way] - 1:+.0%}, idle {row[f'idle, {way}']:.0%}" for way in ways_of(row))
    link = f"  {row['gbit']} Gbit/s" if "gbit" in row else ""
    return (
        f"{row['workers']:4} workers  {row['data']:9} sigma {row['sigma']}{link}  {row['size']} samples  {gains}  "
        "(simulated)"
    )


def main() -> None:
    """All tables, and the largest of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default="balance,communication,rl")
    given = parser.parse_args()
    every = {"balance": balance_rows, "communication": communication_rows, "rl": rl_rows}
    makers = {**every, "thousand": thousand_rows}
    tables: dict[str, list[Row]] = {}
    for name in given.tables.split(","):
        tables[name] = makers[name]()
        print(f"{name}, most: {said(max(tables[name], key=most_gain))}")
    found = {**provenance("odc_paper.py", sys.argv[1:], 1), "kind": "simulated", "tables": tables}
    if set(tables) == set(every):
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    if set(tables) == {"thousand"}:
        RESULTS.with_name("odc-paper-thousand.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
