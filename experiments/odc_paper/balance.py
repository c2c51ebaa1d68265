"""ODC's claims where communication takes no time: what balance alone gives, for fine-tuning and for rollouts.

    python -m experiments.odc_paper.balance

Inputs: a sample's cost, as sail-sg/odc measured it of a 7B model on an A100, and lengths. Outcome: seconds of each way
and idle shares, by the live machines on a virtual clock. Every number of the paper is "up to" over a set that it does
not list: ours is the largest over our own, of 8 and 32 workers (the paper has up to 32 GPUs) and 1 to 8 samples each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from coarse.parallel.packing.costs import QWEN_7B
from coarse.parallel.packing.partitions import get_seqlen_balanced_partitions
from coarse.parallel.packing.plans import MinibatchPlan
from experiments.long_tail.lengths import MEAN_TOKENS, draw_lengths
from experiments.odc_paper.inputs import TITLE, inputs_now
from experiments.odc_paper.job import Job
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

CAP = 65_536
"""Tokens of a microbatch, and the longest sample."""
WORKERS_OF_NODE = 8
WORKERS = (8, 32)
SIZES = (1, 2, 4, 8)
"""Samples of a worker and minibatch."""
NUM_MINIBATCHES = {8: 24, 32: 8, 128: 2, 1024: 1}
"""By workers."""
RL_MOST_TOKENS = 16_384
"""Assumed: the longest response that is sampled."""
RL_CAP = 16_384
"""Verl's default of ppo_max_token_len_per_gpu."""
RL_SIZES = (2, 4, 8, 16)
BASE, RL_BASE = "fsdp + lb_micro", "fsdp + verl"
"""What the others are held to: mode fsdp with the best balance that it can have."""
INPUTS = ("costs", "lengths", "sizes")
Row = dict[str, Any]
Lengths = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One training."""

    data: str
    sigma: float
    num_workers: int
    size: int

    @property
    def row(self) -> Row:
        """What a table says of it first."""
        return {"data": self.data, "sigma": self.sigma, "workers": self.num_workers, "size": self.size}


def drawn(data: str, sigma: float, minibatch: int, number: int, seed: int) -> Lengths:
    """By minibatch."""
    if data == "aime":
        factor, most = inputs_now().rl_mean_tokens / MEAN_TOKENS["longalign"], RL_MOST_TOKENS
        data = "longalign"
    else:
        factor, most = 1.0, CAP
    found = draw_lengths(data, sigma, minibatch * number, factor, most, seed)
    return [found[begin : begin + minibatch] for begin in range(0, len(found), minibatch)]


def points(num_workers: tuple[int, ...], sigmas: tuple[float, ...]) -> list[Point]:
    """Of fine-tuning: both sets of data, and all sizes."""
    return [
        Point(data=data, sigma=sigma, num_workers=number, size=size)
        for number in num_workers for data in MEAN_TOKENS for sigma in sigmas for size in SIZES
    ]  # fmt: skip


@cache
def tuned(point: Point) -> Row:
    """Seconds of each way, and idle shares, of fine-tuning."""
    job = Job(num_workers=point.num_workers, workers_of_node=WORKERS_OF_NODE, cost=QWEN_7B)
    row, number = point.row, NUM_MINIBATCHES[point.num_workers]
    lengths = drawn(point.data, point.sigma, point.size * point.num_workers, number, seed=point.size)
    for balance in ("local_sort", "lb_micro", "lb_mini"):
        costs = job.costs(job.balanced(balance, CAP, lengths), lengths)
        if balance != "lb_mini":
            put(row, f"fsdp + {balance}", job.fsdp_s(costs))
        put(row, f"odc + {balance}", job.odc_s(costs, cache=True))
    return row


def rl_points(sigmas: tuple[float, ...]) -> list[Point]:
    """Of responses of unequal length."""
    return [
        Point(data="aime", sigma=sigma, num_workers=number, size=size)
        for number in WORKERS for sigma in sigmas for size in RL_SIZES
    ]  # fmt: skip


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


def rolled(point: Point) -> Row:
    """Of responses of unequal length, as many on each worker, whichever the mode."""
    return _rolled(point, inputs_now().rl_mean_tokens)


@cache
def _rolled(point: Point, _: float) -> Row:
    job = Job(num_workers=point.num_workers, workers_of_node=WORKERS_OF_NODE, cost=QWEN_7B)
    row, number = point.row, NUM_MINIBATCHES[point.num_workers]
    lengths = drawn("aime", point.sigma, point.size * point.num_workers, number, seed=point.size)
    costs = job.costs([rl_plan(some, point.num_workers) for some in lengths], lengths)
    put(row, RL_BASE, job.fsdp_s(costs))
    put(row, "odc + verl", job.odc_s(costs, cache=True))
    by_cost = job.balanced("lb_mini", RL_CAP, lengths, equal_samples=True)
    put(row, "odc + lb_mini, equal samples", job.odc_s(job.costs(by_cost, lengths), cache=True))
    return row


def put(row: Row, way: str, found: tuple[float, float]) -> None:
    """Seconds and idle share of a way."""
    row[way], row[f"idle, {way}"] = found


def ways_of(row: Row) -> list[str]:
    """The ways that a row compares."""
    return [key.removeprefix("idle, ") for key in row if key.startswith("idle, ")]


def most_gain(row: Row) -> float:
    """Of mode odc in any way over the base."""
    base: float = row[RL_BASE if RL_BASE in row else BASE]
    ours: float = min(row[way] for way in ways_of(row) if way.startswith("odc"))
    return base / ours


def said(row: Row) -> str:
    """Which point a row is of."""
    return f"{row['data']}, sigma {row['sigma']:g}, {row['workers']} workers, {row['size']} samples"


def rows() -> list[ClaimRow]:
    """All claims."""
    inputs = inputs_now()
    found = [tuned(point) for point in points(WORKERS, inputs.sigmas) if point.size <= inputs.most_samples]
    rl = [rolled(point) for point in rl_points(inputs.sigmas) if point.size >= inputs.least_rl_samples]
    return [*_tuning_rows(found), *_rl_rows(rl)]


def _tuning_rows(found: list[Row]) -> Iterator[ClaimRow]:
    best, idlest = max(found, key=most_gain), max(found, key=lambda row: float(row[f"idle, {BASE}"]))
    yield claim_row(
        "fine-tuning: odc over fsdp with LB-Micro, the most", "main results", "up to +36 %", Number(1.36, 1.36),
        [most_gain(best)], Unit.CHANGE, inputs=INPUTS, why=f"at {said(best)}; the paper does not list its set",
    )  # fmt: skip
    ones = [row[BASE] / row["odc + lb_mini"] for row in found if row["size"] == 1]
    yield claim_row(
        "fine-tuning: all ways at one sample a worker and minibatch", "main results", "parity",
        Order(all(abs(gain - 1) < 0.01 for gain in ones)), ones, Unit.CHANGE, inputs=INPUTS,
        why="one sample of a worker leaves nothing to balance",
    )  # fmt: skip
    yield claim_row(
        "fine-tuning: idle share of fsdp with LB-Micro, the most", "Table 6", "up to 50 %", Number(0.5, 0.5),
        [idlest[f"idle, {BASE}"]], Unit.SHARE, inputs=INPUTS,
        why=f"at {said(idlest)}: where one sample outlasts all that others have, nobody can help",
    )  # fmt: skip
    curves: dict[tuple[str, float, int], list[float]] = {}
    for row in found:
        if row["size"] > 1:
            curve = curves.setdefault((row["data"], row["sigma"], row["workers"]), [])
            curve.append(row["odc + lb_micro"] / row["odc + lb_mini"])
    narrowing = [curve[0] - curve[-1] for curve in curves.values() if len(curve) > 1]
    mean = sum(narrowing) / len(narrowing) if narrowing else 0.0
    yield claim_row(
        "fine-tuning: LB-Mini over LB-Micro from two samples of a worker to the most", "findings",
        "larger at small sizes, narrows", Order(mean > 0), [curve[0] for curve in curves.values()], Unit.TIMES,
        inputs=INPUTS, why="a wide spread of lengths moves the largest gain to more samples",
    )  # fmt: skip
    same = [row[BASE] / row["odc + lb_micro"] for row in found]
    yield claim_row(
        "fine-tuning: odc over fsdp, both with LB-Micro", "findings", "gains come from balance",
        Order(all(gain >= 1 - 1e-9 for gain in same)), same, Unit.TIMES, inputs=INPUTS,
    )  # fmt: skip


def _rl_rows(found: list[Row]) -> Iterator[ClaimRow]:
    best = max(found, key=most_gain)
    yield claim_row(
        "rollouts (GRPO on verl): odc over fsdp, the most", "main results", "up to +10 %", Number(1.1, 1.1),
        [most_gain(best)], Unit.CHANGE, inputs=(*INPUTS, "rollouts"),
        why=f"at {said(best)}; of training alone, and the paper states neither lengths nor samples of a worker",
    )  # fmt: skip


def gains_table() -> list[list[str]]:
    """The largest gain over LB-Micro by workers and samples of a worker."""
    lines = [["workers", *(f"{size} samples" for size in SIZES)]]
    for number in WORKERS:
        every = [tuned(point) for point in points((number,), inputs_now().sigmas)]
        most = [max(most_gain(row) for row in every if row["size"] == size) for size in SIZES]
        lines.append([str(number), *(f"{gain - 1:+.0%}" for gain in most)])
    return lines


def rl_table() -> list[list[str]]:
    """The largest gain over verl by workers and samples of a worker."""
    lines = [["workers", *(f"{size} samples" for size in RL_SIZES)]]
    for number in WORKERS:
        every = [rolled(point) for point in rl_points(inputs_now().sigmas) if point.num_workers == number]
        most = [max(most_gain(row) for row in every if row["size"] == size) for size in RL_SIZES]
        lines.append([str(number), *(f"{gain - 1:+.0%}" for gain in most)])
    return lines


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
