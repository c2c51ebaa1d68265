"""A link degrades in mid-run: what iterations take before, afterwards without profiling, and once it was noticed.

python benchmarks/degradation.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulation.account import ALLOWED_LATE_SHARE
from coarse.emulation.launch import EmulatedResult, run_order
from coarse.emulation.order import EmulationOrder
from coarse.hardware.degradation import at_share
from coarse.simulation.adaptation import PROFILE_EVERY, Profile
from coarse.simulation.job import Job
from coarse.simulation.profiling import measured_facts
from coarse.simulation.report import Report, mean_durations, profile_share
from coarse.simulation.training import simulate

COST_LIMIT = 0.01
"""Share of the time that profiling may take."""
NEAR_BEST = 0.05
"""How much longer than that of the best possible job an iteration may take, once the loss was noticed."""
NUM_ITERATIONS, EMULATED_ITERATIONS = 60, 22
DEGRADED_FROM = 4.5
"""Iterations after which the link degrades, counted in healthy ones."""


class Case(NamedTuple):
    """One link that is lost on one machine."""

    machine: str
    policy: str
    link: str
    factor: float
    why: str
    model: str = "resnet50"
    batch: int = 16
    workers: int = 2
    is_emulated: bool = False


CASES = (
    Case("aws-p3", "devices", "socket0 crossing", 0.1, "the way to the bandwidth proxies", is_emulated=True),
    Case("aws-p3", "auto", "socket0 crossing", 0.1, "the way to the bandwidth proxies"),
    Case("aws-p3", "paper", "socket0 crossing", 0.1, "the way to the bandwidth proxies"),
    Case("aws-p3", "auto", "gpu0 - gpu2 *", 0.02, "the NVLink of the workers' ring", is_emulated=True),
    Case("sdsc-p100", "devices", "gpu1 duplex", 0.1, "the port of a local memory device", is_emulated=True),
    Case("sdsc-p100", "auto", "gpu1 duplex", 0.1, "the port of a local memory device"),
    Case("aws-p3", "auto", "gpu1 duplex", 0.1, "the port of a local memory device", "bert-large", 2, 4),
)
"""Batches are small, so that communication is not hidden by compute alone."""


def main() -> None:
    """Every case; prints a table and writes benchmarks/results/degradation.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=NUM_ITERATIONS)
    parser.add_argument("--profile-every", type=int, default=PROFILE_EVERY)
    parser.add_argument("--emulated-iterations", type=int, default=EMULATED_ITERATIONS, help="0 emulates nothing")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        asked = order_of(case, options.iterations, options.profile_every)
        rows.append(simulated_row(case, asked))
        print(rows[-1], file=sys.stderr, flush=True)
        if options.emulated_iterations and case.is_emulated:
            live = replace(asked, num_iterations=options.emulated_iterations)
            rows.append(emulated_row(case, live, rows[-1]))
            print(rows[-1], file=sys.stderr, flush=True)
    report(rows, options.profile_every)


def order_of(case: Case, num_iterations: int, profile_every: int) -> EmulationOrder:
    """The case as a run, its link lost in mid-iteration; decided on healthy links."""
    healthy = EmulationOrder(
        machine=case.machine,
        model=case.model,
        gpu=None,
        batch=case.batch,
        precision="fp32",
        mode="coarse",
        num_workers=case.workers,
        num_devices=case.workers,
        num_iterations=num_iterations,
        collective="ring",
        policy=case.policy,
    ).decided()
    lost_s = DEGRADED_FROM * simulate(replace(healthy.job(), num_iterations=3)).iteration_s
    return replace(
        healthy, profile_every=profile_every, degradations=(f"{case.link}={case.factor}@{lost_s!r}",)
    )


def simulated_row(case: Case, asked: EmulationOrder) -> dict[str, object]:
    """With profiling, without, and told the truth from the start."""
    job = asked.job()
    told = told_the_truth(asked, job)
    best_s = simulate(replace(told, num_iterations=3)).iteration_s
    without_s = simulate(replace(job, profile_every=0, num_iterations=8)).iteration_s
    return row_of("simulated", case, asked, simulate(job, decide=asked.decide()), without_s, best_s)


def emulated_row(case: Case, asked: EmulationOrder, simulated: dict[str, object]) -> dict[str, object]:
    """The same by real ranks; what is best possible is the simulator's word. One that was late too often says so."""
    result = run_order(asked)
    change = first_change(result.profiles)
    lost = [s for number, s in enumerate(mean_durations(result.iterations)) if DEGRADED_FROM + 1 < number < change]
    row = row_of("emulated", case, asked, result, median(lost), float(str(simulated["best_s"])))
    return row | {
        "late_share": result.late_share,
        "start_profile_s": result.start_profile_s,
        "simulated_after_s": simulated["after_s"],
    }


def told_the_truth(asked: EmulationOrder, job: Job) -> Job:
    """The job that knows from the start what its links will be, and has them from the start."""
    scenario = asked.scenario()
    links = list(job.site.links)
    for _, link, bytes_per_s in job.rate_changes:
        links[link] = at_share(job.site.links[link], bytes_per_s / job.site.links[link].bytes_per_s)
    site = replace(job.site, links=tuple(links))
    facts = measured_facts(site, job.placement.cluster, job.strategy)
    plain = replace(job, site=site, facts=facts, rate_changes=(), profile_every=0)
    return scenario.decide(plain.with_split(len(job.gradients)))


def first_change(profiles: Sequence[Profile]) -> int:
    """The iteration from which on tables or split are others."""
    return next((profile.iteration for profile in profiles if profile.is_new), sys.maxsize)


def row_of(
    kind: str, case: Case, asked: EmulationOrder, result: Report | EmulatedResult, without_s: float, best_s: float
) -> dict[str, object]:
    """Seconds of iterations, and what profiling cost."""
    durations_s = mean_durations(result.iterations)
    change = first_change(result.profiles)
    hit = int(DEGRADED_FROM)
    last = [profile for profile in result.profiles if profile.is_new][-1:]
    return {
        "kind": kind,
        **case._asdict(),
        "profile_every": asked.profile_every,
        "num_iterations": len(durations_s),
        "before_s": median(durations_s[1:hit]),
        "without_s": without_s,
        "after_s": median(durations_s[change:]) if last else without_s,
        "best_s": best_s,
        "iterations_until_changed": change - hit if last else None,
        "routes": [list(row) for row in last[0].facts] if last else None,
        "num_to_devices": [asked.job().num_to_devices, *(profile.num_to_devices for profile in last)],
        "look_s": [profile.duration_s for profile in result.profiles if not profile.num_changed],
        "change_s": [profile.duration_s for profile in result.profiles if profile.num_changed],
        "profile_share": profile_share(result.iterations, result.profiles),
    }


def is_kept(row: dict[str, object]) -> bool:
    """Whether tables changed within a period, iterations followed, and profiling cost no more than it may.

    An emulated run of which more transfers were late than may be keeps nothing.
    """
    if float(str(row.get("late_share", 0.0))) > ALLOWED_LATE_SHARE:
        return False
    until, share = row["iterations_until_changed"], row["profile_share"]
    after_s, best_s = float(str(row["after_s"])), float(str(row["best_s"]))
    in_time = until is None or int(str(until)) <= int(str(row["profile_every"]))
    return in_time and after_s <= (1 + NEAR_BEST) * best_s and float(str(share)) <= COST_LIMIT


def report(rows: list[dict[str, object]], profile_every: int) -> None:
    """The table, whether all was kept, and the file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    lines = [
        [
            f"{row['machine']}, {row['model']}, {row['policy']}: {row['link']} x {row['factor']}, {row['kind']}",
            *(f"{float(str(row[key])) * 1e3:.1f}" for key in ("before_s", "without_s", "after_s", "best_s")),
            str(row["iterations_until_changed"]),
            f"{float(str(row['profile_share'])):.2%}",
            f"{float(str(row['late_share'])):.1%}" if "late_share" in row else "-",
            "yes" if is_kept(row) else "no",
        ]
        for row in rows
    ]
    columns = ["", "before", "unnoticed", "noticed", "told at once", "iterations until", "cost", "late", "kept"]
    print_table(f"Milliseconds of an iteration, profiled every {profile_every}", columns, lines)
    num_kept = sum(map(is_kept, rows))
    print(f"\n{num_kept} of {len(rows)} kept; of an emulated run at most {ALLOWED_LATE_SHARE:.0%} may be late")
    result = provenance("degradation.py", sys.argv[1:], 1) | {
        "kind": "simulated and emulated",
        "command": " ".join(["python", "benchmarks/degradation.py", *sys.argv[1:]]),
        "profile_every": profile_every,
        "degraded_from_iteration": DEGRADED_FROM,
        "num_kept": num_kept,
        "rows": rows,
    }
    print(f"written to {write_json('degradation', result)}")


if __name__ == "__main__":
    main()
