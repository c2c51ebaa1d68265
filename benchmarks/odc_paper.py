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
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.odc_simulated import Job
from benchmarks.provenance import provenance
from coarse.parallel.packing.costs import QWEN_7B
from coarse.parallel.packing.partitions import get_seqlen_balanced_partitions
from coarse.parallel.packing.plans import MinibatchPlan
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum
from experiments.long_tail.lengths import MEAN_TOKENS, SIGMAS, draw_lengths

RESULTS = Path(__file__).parent / "results" / "odc-paper.json"
CAP = 65_536
WORKERS_OF_NODE = 8
SIZES = (1, 2, 4, 8)
NUM_MINIBATCHES = {8: 24, 32: 8, 128: 2, 1024: 1}
"""By workers."""
MODEL_ELEMENTS = 7_600_000_000
NUM_UNITS = {8: 28, 32: 14, 1024: 2}
"""By workers: 28 layers in so many units, so that a thousand workers take minutes."""
GBITS = (800, 80)
RL_MEAN_TOKENS, RL_MOST_TOKENS = 8_000, 16_384
"""Assumed: of a response to a prompt of AIME, and the longest that is sampled."""
RL_CAP = 16_384
"""Verl's default of ppo_max_token_len_per_gpu."""
RL_SIZES = (2, 4, 8, 16)
Row = dict[str, Any]
Lengths = list[list[int]]


def drawn(data: str, sigma: float, minibatch: int, number: int, seed: int) -> Lengths:
    """By minibatch."""
    if data == "aime":
        factor, most = RL_MEAN_TOKENS / MEAN_TOKENS["longalign"], RL_MOST_TOKENS
        data = "longalign"
    else:
        factor, most = 1.0, CAP
    found = draw_lengths(data, sigma, minibatch * number, factor, most, seed)
    return [found[begin : begin + minibatch] for begin in range(0, len(found), minibatch)]


def balance_rows() -> list[Row]:
    """Seconds of each way, and idle shares, where communication takes no time."""
    rows = []
    for num_workers in (8, 32, 128):
        job = Job(num_workers=num_workers, workers_of_node=WORKERS_OF_NODE, cost=QWEN_7B)
        for data in MEAN_TOKENS:
            for sigma in SIGMAS:
                for size in SIZES:
                    row: Row = {"data": data, "sigma": sigma, "workers": num_workers, "size": size}
                    lengths = drawn(data, sigma, size * num_workers, NUM_MINIBATCHES[num_workers], seed=size)
                    for balance in ("local_sort", "lb_micro", "lb_mini"):
                        costs = job.costs(job.balanced(balance, CAP, lengths), lengths)
                        if balance != "lb_mini":
                            put(row, f"fsdp + {balance}", job.fsdp_s(costs))
                        put(row, f"odc + {balance}", job.odc_s(costs, cache=True))
                    rows.append(row)
                    print(said(row), flush=True)
    return rows


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
    put(row, "fsdp + lb_micro", job.fsdp_s(costs["lb_micro"]))
    put(row, "odc, cache + lb_mini", job.odc_s(costs["lb_mini"], cache=True))
    if num_workers < max(NUM_UNITS):
        put(row, "odc, cache, float32 + lb_mini", job.odc_s(costs["lb_mini"], cache=True, sums=Sum.FLOAT32))
        put(row, "odc + lb_mini", job.odc_s(costs["lb_mini"]))
    print(said(row), flush=True)
    return row


def rl_plan(lengths: list[int], num_workers: int) -> MinibatchPlan:
    """As verl divides: as many samples on each worker, then equally many microbatches, a worker's alike in tokens."""
    parts = get_seqlen_balanced_partitions(lengths, num_workers, equal_size=True)
    own = [[lengths[sample] for sample in part] for part in parts]
    number = max(1, *(-(-sum(some) // RL_CAP) for some in own))
    while True:
        packed = [get_seqlen_balanced_partitions(some, number, equal_size=False) for some in own]
        tokens = [sum(some[one] for one in group) for some, groups in zip(own, packed, strict=True) for group in groups]
        if max(tokens) <= RL_CAP:
            break
        number += 1
    return MinibatchPlan(tuple(
        tuple(tuple(part[one] for one in group) for group in groups) for part, groups in zip(parts, packed, strict=True)
    ))  # fmt: skip


def rl_rows() -> list[Row]:
    """Responses of unequal length, as many on each worker, whichever the mode."""
    rows = []
    for num_workers in (8, 32):
        job = Job(num_workers=num_workers, workers_of_node=WORKERS_OF_NODE, cost=QWEN_7B)
        for sigma in SIGMAS:
            for size in RL_SIZES:
                row: Row = {"data": "aime", "sigma": sigma, "workers": num_workers, "size": size}
                lengths = drawn("aime", sigma, size * num_workers, NUM_MINIBATCHES[num_workers], seed=size)
                costs = job.costs([rl_plan(some, num_workers) for some in lengths], lengths)
                put(row, "fsdp + verl", job.fsdp_s(costs))
                put(row, "odc + verl", job.odc_s(costs, cache=True))
                by_cost = job.balanced("lb_mini", RL_CAP, lengths, equal_samples=True)
                put(row, "odc + lb_mini, equal samples", job.odc_s(job.costs(by_cost, lengths), cache=True))
                rows.append(row)
                print(said(row), flush=True)
    return rows


def put(row: Row, way: str, found: tuple[float, float]) -> None:
    """Seconds and idle share of a way."""
    row[way], row[f"idle, {way}"] = found


def ways_of(row: Row) -> list[str]:
    """The ways that a row compares."""
    return [key.removeprefix("idle, ") for key in row if key.startswith("idle, ")]


def base_of(row: Row) -> str:
    """What the others are held to: mode fsdp with the best balance that it can have."""
    return "fsdp + verl" if "fsdp + verl" in row else "fsdp + lb_micro"


def most_gain(row: Row) -> float:
    """Of mode odc in any way over the base."""
    base: float = row[base_of(row)]
    return base / min(row[way] for way in ways_of(row) if way.startswith("odc")) - 1


def said(row: Row) -> str:
    """A line."""
    base = row[base_of(row)]
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
