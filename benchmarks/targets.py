"""What the benchmarks should reach, and whether results do: each miss is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.degradation import COST_LIMIT, is_kept
from benchmarks.emulated_targets import judge_emulated_box, judge_emulated_training
from benchmarks.first_names import MOST_SECONDS as MOST_SECONDS_OF_NAMES
from benchmarks.first_names import NUM_NAMES
from benchmarks.idle import ALLOWED_CPU_S_PER_S
from benchmarks.policies import MOST_OVER_ALLREDUCE, MOST_OVER_BEST
from benchmarks.sharded_targets import judge_throughput, judge_wire
from benchmarks.simulator import MOST_DIFFERENCE
from benchmarks.simulator_speed import LEAST_SHARE_OF_LOOP, MOST_SECONDS
from benchmarks.tf_targets import judge_tf_step
from benchmarks.verdicts import Limit, Verdict, at_least, at_most, judge, percent_at_most
from benchmarks.workloads import MANY_SMALL, MANY_SMALL_AT_ONCE, MANY_SMALL_GROUPED

Result = Mapping[str, Any]
"""A file of benchmarks/results."""

LARGE = ("98MiB", "420MiB", "bert-large")
PLAIN = ("98MiB", "420MiB")
MOST_OF_MANY = 6
"""5 ms, as 0.8 ms are taken for one tensor of as many bytes."""
SMALL = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB")
LEAST_MEMCPYS_OF_A_STEP = 10
"""The step's targets hold where the step without synchronisation takes this many memcpys of its gradients."""
MOST_ERROR = 1e-6
"""Relative error of emulated transfers beside latency and rate of their links."""
_LEAST_ROUNDS = 7
"""A result of fewer rounds is a trial, which decides nothing."""


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
        judge("plain tensor: faster than Gloo", at_least(3.5), found(copied, gloo), PLAIN),
        judge("plain tensor: faster than Open MPI", at_least(1.8), found(copied, open_mpi), PLAIN),
        judge("with a copy, in buckets: faster than Gloo", at_least(2), found(copied, gloo), ("bert-large",)),
        judge("small, in device memory: faster than Gloo", at_least(2), found(device, gloo), SMALL),
        judge("small, with a copy: faster than Gloo", at_least(2), found(copied, gloo), SMALL),
        *(
            judge(
                f"200 small, {how}: in times of one tensor",
                at_most(MOST_OF_MANY),
                many_over_one(result, copied, name),
                (name,),
            )
            for how, name in (("one call", MANY_SMALL_GROUPED), ("200 calls", MANY_SMALL))
        ),
    ]


def many_over_one(result: Result | None, contender: str, many: str) -> dict[str, float]:
    """How many times as long 200 small tensors at once take as one of as many bytes, in one run."""
    both = {many, MANY_SMALL_AT_ONCE}
    rows = [row for row in (result["rows"] if result else ()) if row["workload"] in both]
    medians = {row["workload"]: row["median_s"] for row in rows if row["contender"] == contender}
    if medians.keys() != both or min(row["num_rounds"] for row in rows) < _LEAST_ROUNDS:
        return {}
    return {many: medians[many] / medians[MANY_SMALL_AT_ONCE]}


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


def judge_first_names(result: Result | None) -> list[Verdict]:
    """Seconds that tensors under new names take, their first results included."""
    place, soon_enough = f"{NUM_NAMES:,} names", Limit(bound=MOST_SECONDS_OF_NAMES, unit=" s", is_least=False)
    found = {place: result["median_first_s"]} if result and result["num_names"] == NUM_NAMES else {}
    return [judge("small tensors under new names, pushed and waited for", soon_enough, found, [place])]


def judge_idle(result: Result | None) -> list[Verdict]:
    """CPU of a device that has nothing to do."""
    allowed = Limit(bound=ALLOWED_CPU_S_PER_S * 1e3, unit=" ms/s", is_least=False)
    found = {f"device {row['device']}": row["cpu_s_per_s"] * 1e3 for row in (result["rows"] if result else ())}
    return [judge("CPU of an idle memory device", allowed, found, list(found) or ["devices"])]


def judge_simulator(result: Result | None) -> list[Verdict]:
    """The simulator's events per second, and the seconds that a job of 1,024 workers takes."""
    shares = {row["case"]: row["share_of_loop"] for row in (result["rows"] if result else ())}
    compiled = {row["case"]: row["share_of_loop"] for row in (result.get("compiled", ()) if result else ())}
    seconds = {row["case"]: row["total_s"] for row in (result["many"] if result else ())}
    fast_enough = Limit(bound=LEAST_SHARE_OF_LOOP, unit="x", is_least=True)
    soon_enough = Limit(bound=MOST_SECONDS, unit=" s", is_least=False)
    return [
        judge("simulator's events/s, of a bare heapq loop's", fast_enough, shares, list(shares) or ["all modes"]),
        judge("the same by compiled modules", fast_enough, compiled, list(shares) or ["all modes"]),
        judge("BERT-large on many workers, simulated", soon_enough, seconds, list(seconds) or ["1024 workers"]),
    ]


def judge_emulation(result: Result | None) -> list[Verdict]:
    """Emulated pushes and pulls, alone and both at once, beside what their links say."""
    worst: dict[str, float] = {}
    for row in [] if result is None else result["rows"]:
        worst[row["machine"]] = max(worst.get(row["machine"], 0.0), row["error"])
    millionths = {machine: error * 1e6 for machine, error in worst.items()}
    limit = Limit(bound=MOST_ERROR * 1e6, unit=" ppm", is_least=False)
    return [judge("emulated transfers: worst error", limit, millionths, list(worst) or ["three machines"])]


def judge_accuracy(result: Result | None) -> list[Verdict]:
    """Emulated iterations of replayed compute beside simulated ones."""
    differences: dict[str, list[float]] = {}
    for row in result["rows"] if result else ():
        differences.setdefault(row["model"], []).append(row["difference"] * 1e9)
    worst = {f"{model}, {len(found)} cells": max(found) for model, found in differences.items()}
    limit = Limit(bound=MOST_DIFFERENCE * 1e9, unit=" ppb", is_least=False)
    return [judge("emulated against simulated: largest difference", limit, worst, list(worst) or ["all cells"])]


def judge_policies(result: Result | None) -> list[Verdict]:
    """The policy auto beside the best split of a sweep, and beside all-reduce: the worst cell of each model."""
    rows = result["simulated"] if result else ()
    models = list(dict.fromkeys(row["model"] for row in rows))
    places = {model: f"{model}, {sum(row['model'] == model for row in rows)} cells" for model in models}

    def worst(key: str) -> dict[str, float]:
        return {places[model]: max(row[key] for row in rows if row["model"] == model) for model in models}

    wanted = list(places.values()) or ["all presets"]
    return [
        judge("policy auto over the best split, simulated", at_most(MOST_OVER_BEST), worst("auto_over_best"), wanted),
        judge(
            "policy auto over all-reduce, simulated", at_most(MOST_OVER_ALLREDUCE), worst("auto_over_allreduce"), wanted
        ),
    ]


def judge_degradation(result: Result | None) -> list[Verdict]:
    """What profiling costs in jobs that lose a link, and how many noticed and followed."""
    rows = result["rows"] if result else ()
    places = {kind: f"{kind}, {sum(row['kind'] == kind for row in rows)} runs" for kind in ("simulated", "emulated")}
    present = {kind: [row for row in rows if row["kind"] == kind] for kind in places}
    costs = {places[kind]: max(row["profile_share"] for row in of) * 100 for kind, of in present.items() if of}
    kept = {places[kind]: 100 * sum(map(is_kept, of)) / len(of) for kind, of in present.items() if of}
    everyone = Limit(bound=100, unit=" %", is_least=True)
    return [
        judge("a link lost in mid-run: time for profiling", percent_at_most(COST_LIMIT), costs, places.values()),
        judge("a link lost in mid-run: noticed and followed", everyone, kept, places.values()),
    ]


JUDGES: Mapping[str, Callable[[Result | None], list[Verdict]]] = {
    "sync-2-2": judge_sync,
    "step-2-2": judge_step,
    "first-names-2-2": judge_first_names,
    "idle-2-2": judge_idle,
    "simulator-speed": judge_simulator,
    "emulation": judge_emulation,
    "simulator": judge_accuracy,
    "emulated-training": judge_emulated_training,
    "emulated-box": judge_emulated_box,
    "policies": judge_policies,
    "degradation": judge_degradation,
    "wire": judge_wire,
    "throughput": judge_throughput,
    "tf-step": judge_tf_step,
}
"""Name of a result -> its targets."""
