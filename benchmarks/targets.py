"""What the benchmarks should reach, and whether results do: each miss is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.idle import ALLOWED_CPU_S_PER_S
from benchmarks.simulator_speed import LEAST_SHARE_OF_LOOP, MOST_SECONDS

Result = Mapping[str, Any]
"""A file of benchmarks/results."""

LARGE = ("98MiB", "420MiB", "bert-large")
SMALL = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB")
LEAST_MEMCPYS_OF_A_STEP = 10
"""The step's targets hold where the step without synchronisation takes this many memcpys of its gradients."""
_LEAST_ROUNDS = 7
"""A result of fewer rounds is a trial, which decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A number that results must not be below, or not above; `unit` follows it in print."""

    bound: float
    unit: str
    is_least: bool

    def holds(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.is_least else 'most'} {self.bound:g}{self.unit}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One target, what was found at each place where it holds, and the places that miss it."""

    target: str
    limit: str
    found: tuple[tuple[str, str], ...]
    missed: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def reached(self) -> str:
        """Yes, no and where, or what has not been measured."""
        if self.missed:
            return f"no ({', '.join(self.missed)})"
        if self.absent:
            return f"not measured ({', '.join(self.absent)})"
        return "yes"


def judge(target: str, limit: Limit, found: Mapping[str, float], places: Iterable[str]) -> Verdict:
    """The verdict on a target that holds at `places`, of which `found` may lack some."""
    wanted = list(places)
    return Verdict(
        target=target,
        limit=str(limit),
        found=tuple((place, f"{found[place]:.2f}{limit.unit}") for place in wanted if place in found),
        missed=tuple(place for place in wanted if place in found and not limit.holds(found[place])),
        absent=tuple(place for place in wanted if place not in found),
    )


def judge_sync(result: Result | None) -> list[Verdict]:
    """The targets of one synchronisation by 2 workers and 2 devices."""

    def found(contender: str, key: str) -> dict[str, float]:
        rounds = {row["workload"]: row["num_rounds"] for row in result["rows"]} if result else {}
        rows = result["ratios"] if result else ()
        return {
            row["workload"]: row[key]
            for row in rows
            if row["contender"] == contender and row[key] is not None and rounds[row["workload"]] >= _LEAST_ROUNDS
        }

    device, copied = "coarse, device", "coarse, copy"
    gloo, open_mpi = "times_faster_than_gloo", "times_faster_than_open_mpi"
    return [
        judge("in device memory: faster than Gloo", at_least(6), found(device, gloo), LARGE),
        judge("in device memory: faster than Open MPI", at_least(3.5), found(device, open_mpi), LARGE),
        judge("in device memory: time in memcpys", at_most(1.3), found(device, "memcpys"), LARGE),
        judge("with a copy: faster than Gloo", at_least(2), found(copied, gloo), LARGE),
        judge("small, in device memory: faster than Gloo", at_least(2), found(device, gloo), SMALL),
        judge("small, with a copy: faster than Gloo", at_least(2), found(copied, gloo), SMALL),
    ]


def at_least(bound: float) -> Limit:
    """So many times or more."""
    return Limit(bound=bound, unit="x", is_least=True)


def at_most(bound: float) -> Limit:
    """So many times or fewer."""
    return Limit(bound=bound, unit="x", is_least=False)


def judge_step(result: Result | None) -> list[Verdict]:
    """What coarse may add to a training step that is long enough, alone and beside DDP."""
    rows: Sequence[Mapping[str, Any]] = result["rows"] if result else ()
    long_enough = [row for row in rows if row["unsynchronised_memcpys"] >= LEAST_MEMCPYS_OF_A_STEP]
    added = {(_rows_label(row), row["contender"]): row["added_share"] for row in long_enough}
    places = list(dict.fromkeys(place for place, _ in added)) or ["steps of 10 memcpys or more"]
    ours = {place: added[place, "coarse"] * 100 for place in places if (place, "coarse") in added}
    theirs = {place: added[place, "DDP"] * 100 for place in places if (place, "DDP") in added}
    shares = {
        place: ours[place] / theirs[place] if theirs[place] > 0 else math.inf for place in ours if place in theirs
    }
    return [
        judge("added to a training step", Limit(bound=10, unit=" %", is_least=False), ours, places),
        judge("of what DDP adds to it (inf: DDP adds nothing)", at_most(0.5), shares, places),
    ]


def _rows_label(row: Mapping[str, Any]) -> str:
    return f"batch {row['rows_per_worker']}"


def judge_idle(result: Result | None) -> list[Verdict]:
    """CPU of a device that has nothing to do."""
    allowed = Limit(bound=ALLOWED_CPU_S_PER_S * 1e3, unit=" ms/s", is_least=False)
    found = {f"device {row['device']}": row["cpu_s_per_s"] * 1e3 for row in (result["rows"] if result else ())}
    return [judge("CPU of an idle memory device", allowed, found, list(found) or ["devices"])]


def judge_simulator(result: Result | None) -> list[Verdict]:
    """The simulator's events per second, and the seconds that a job of 1,024 workers takes."""
    shares = {row["case"]: row["share_of_loop"] for row in (result["rows"] if result else ())}
    seconds = {row["case"]: row["total_s"] for row in (result["many"] if result else ())}
    fast_enough = Limit(bound=LEAST_SHARE_OF_LOOP, unit="x", is_least=True)
    soon_enough = Limit(bound=MOST_SECONDS, unit=" s", is_least=False)
    return [
        judge("simulator's events/s, of a bare heapq loop's", fast_enough, shares, list(shares) or ["all modes"]),
        judge("BERT-large on many workers, simulated", soon_enough, seconds, list(seconds) or ["1024 workers"]),
    ]


JUDGES: Mapping[str, Callable[[Result | None], list[Verdict]]] = {
    "sync-2-2": judge_sync,
    "step-2-2": judge_step,
    "idle-2-2": judge_idle,
    "simulator-speed": judge_simulator,
}
"""Name of a result -> its targets."""
