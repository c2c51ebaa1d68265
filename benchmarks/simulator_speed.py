"""Speed of the simulator: events per second beside a bare heapq loop, and seconds of a job of 1,024 workers.

python benchmarks/simulator_speed.py

After `make compiled` the same rows once more by the compiled modules, in a process of their own.

An event is what the simulator takes from its queues of virtual time and acts upon: an action that is due, or
the end of a transfer. The loop pushes and pops as many entries (time, number, callback), and calls each; it
keeps as many waiting as the simulator has gradients under way. Not counted as events, though the simulator
does them too: ends of start-ups of transfers, and records handled by the machines of clients and proxies.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.client.protocol import ClientProtocol
from coarse.hardware.compute import compute_profile
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import load_preset
from coarse.protocol.config import MODES
from coarse.proxy.protocol import ProxyProtocol
from coarse.simulation import engine
from coarse.simulation.job import Job
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate

COMPILED = Path(__file__).resolve().parents[1] / "build" / "compiled"
LEAST_SHARE_OF_LOOP = 0.1
MOST_SECONDS = 60.0
NUM_WAITING = 1024
MANY_WORKERS = 1024
_MODEL, _BATCH = "bert-large", 2


REST = "rest"
PARTS = {
    "links": ("hardware",),
    "protocols": ("client", "proxy", "protocol", "collectives"),
    "simulation": ("simulation",),
    REST: (),
}
"""Folders: shares of links and their queue; what clients and proxies answer; what carries it out."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job whose events are counted."""

    preset: str
    gpu: str
    mode: str
    num_workers: int

    def __str__(self) -> str:
        return f"{self.preset}, {self.mode}, {self.num_workers} workers"


CASES = tuple(
    Case(preset=preset, gpu=gpu, mode=mode, num_workers=4)
    for preset, gpu in (("aws-g4dn", "t4"), ("aws-p3", "v100"))
    for mode in MODES
)


def main() -> None:
    """Print the tables and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows-only", action="store_true", help="print rows as JSON, and nothing else")
    options = parser.parse_args()
    if options.rows_only:
        print(json.dumps([measure(case, options.rounds) for case in CASES]))
        return
    rows = [measure(case, options.rounds) for case in CASES]
    report(rows, compiled_rows(options.rounds), measure_many(MANY_WORKERS))


def compiled_rows(num_rounds: int) -> list[dict[str, Any]]:
    """What a process measures that has the compiled modules; none where they were not made."""
    if not COMPILED.is_dir():
        print("no compiled modules: make compiled", file=sys.stderr)
        return []
    argv = [sys.executable, __file__, "--rows-only", "--rounds", str(num_rounds)]
    environ = {**os.environ, "PYTHONPATH": str(COMPILED)}
    return list(json.loads(subprocess.run(argv, env=environ, stdout=subprocess.PIPE, check=True).stdout))


def scenario_of(case: Case, num_nodes: int = 1, policy: str = "devices") -> Scenario:
    """BERT-large on the case's machine."""
    model = model_named(_MODEL)
    return Scenario(
        machine=replace(load_preset(case.preset), num_nodes=num_nodes),
        model=model,
        profile=compute_profile(model, case.gpu, _BATCH, Precision.FP32),
        mode=case.mode,
        num_workers=case.num_workers,
        num_nodes=num_nodes,
        policy=policy,
        collective="ring",
    )


def measure(case: Case, num_rounds: int) -> dict[str, Any]:
    """Simulator and loop in turns, so that whatever disturbs the machine disturbs both."""
    job = scenario_of(case).job()
    is_compiled = not engine.__file__.endswith(".py")
    with nullcontext([0]) if is_compiled else counted_records() as records:
        num_events = simulate(job).num_events
    simulator_s, loop_s = [], []
    for _ in range(num_rounds):
        simulator_s.append(seconds_of(lambda: simulate(job)))
        loop_s.append(seconds_of(lambda: bare_loop(num_events)))
    shares = [bare_s / full_s for full_s, bare_s in zip(simulator_s, loop_s, strict=True)]
    return {
        "case": str(case),
        "num_events": num_events,
        "num_records": records[0],
        "events_per_s": num_events / median(simulator_s),
        "records_per_s": records[0] / median(simulator_s),
        "loop_events_per_s": num_events / median(loop_s),
        "share_of_loop": median(shares),
        "num_rounds": num_rounds,
        "parts": {} if is_compiled else parts_of(job),
    }


def parts_of(job: Job) -> dict[str, float]:
    """The share of each part of the simulator in its time, by a profile; a builtin's time is its callers'."""
    profile = cProfile.Profile()
    profile.runcall(simulate, job)
    seconds = dict.fromkeys(PARTS, 0.0)
    for (path, _, _), (_, _, own_s, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if path == "~":
            for (caller, _, _), (_, _, from_there_s, _) in callers.items():
                seconds[part_of(caller)] += from_there_s
        else:
            seconds[part_of(path)] += own_s
    return {part: each_s / sum(seconds.values()) for part, each_s in seconds.items()}


def part_of(path: str) -> str:
    """The part to which a source file belongs."""
    return next((part for part, folders in PARTS.items() if any(f"/coarse/{each}/" in path for each in folders)), REST)


def measure_many(num_workers: int) -> list[dict[str, Any]]:
    """Seconds from the scenario to the report, the choice of the job included."""
    rows: list[dict[str, Any]] = []
    case = Case(preset="aws-p3", gpu="v100", mode="coarse", num_workers=num_workers)
    for policy in ("devices", "paper", "auto"):
        scenario = scenario_of(case, num_nodes=num_workers // 4, policy=policy)
        begin_s = time.perf_counter()
        job = scenario.job()
        chosen_s = time.perf_counter()
        result = simulate(job)
        end_s = time.perf_counter()
        rows.append(
            {
                "case": f"{case}, policy {policy}",
                "num_iterations": job.num_iterations,
                "choose_s": chosen_s - begin_s,
                "simulate_s": end_s - chosen_s,
                "total_s": end_s - begin_s,
                "num_events": result.num_events,
            }
        )
    return rows


def bare_loop(num_events: int) -> None:
    """Push, pop and call so many entries, with NUM_WAITING of them in the queue, at scattered times."""
    queue: list[tuple[float, int, Callable[[], None]]] = []
    push, pop = heapq.heappush, heapq.heappop

    def callback() -> None:
        return None

    now_s, scatter = 0.0, 1
    for number in range(num_events):
        scatter = scatter * 1103515245 + 12345 & 0x7FFFFFFF
        push(queue, (now_s + scatter, number, callback))
        if len(queue) > NUM_WAITING:
            now_s, _, action = pop(queue)
            action()
    while queue:
        _, _, action = pop(queue)
        action()


def seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds, since both sides compute in one thread and wait for nothing."""
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


@contextmanager
def counted_records() -> Iterator[list[int]]:
    """Count, in the one element, what machines of clients and proxies are given, registration included."""
    count = [0]

    def counting(handle: Callable[..., object]) -> Callable[..., object]:
        def handled(*arguments: object, **named: object) -> object:
            count[0] += 1
            return handle(*arguments, **named)

        return handled

    handlers = [(ProxyProtocol, name) for name in ("on_record", "on_chunk", "on_reduced", "on_ring_reduced")]
    handlers += [(ClientProtocol, name) for name in ("on_record", "announce")]  # type: ignore[list-item]
    patches = [patch.object(owner, name, counting(getattr(owner, name))) for owner, name in handlers]
    for each in patches:
        each.start()
    try:
        yield count
    finally:
        for each in patches:
            each.stop()


def without_links(row: dict[str, Any]) -> float:
    """The share of the loop that all the rest alone would have."""
    return float(row["share_of_loop"] / (1 - row["parts"]["links"]))


def print_speeds(rows: Sequence[dict[str, Any]], whose: str) -> None:
    """Print events and their shares of the loop's."""
    from benchmarks.rendering import print_table

    counts = ("num_events", "num_records", "events_per_s", "records_per_s", "loop_events_per_s")
    print_table(
        f"Events per second of {whose}, {_MODEL}; target: {LEAST_SHARE_OF_LOOP:g} of a bare heapq loop",
        ["", "events", "records (0: not counted)", "events/s", "records/s", "loop's events/s", "share"],
        [
            [str(row["case"]), *(f"{row[key]:,.0f}" for key in counts), f"{row['share_of_loop']:.3f}"]
            for row in rows
        ],
    )


def report(
    rows: Sequence[dict[str, Any]], compiled: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]]
) -> None:
    """Print the tables and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    print_speeds(rows, "the simulator")
    if compiled:
        print_speeds(compiled, "the compiled simulator")
    print_table(
        "Shares of the simulator's time, by a profile, and the share of the loop if links cost nothing",
        ["", *PARTS, "if links cost nothing"],
        [
            [str(row["case"]), *(f"{share:.0%}" for share in row["parts"].values()), f"{without_links(row):.3f}"]
            for row in rows
        ],
    )
    print_table(
        f"Seconds for {MANY_WORKERS:,} workers, {_MODEL}; target: below {MOST_SECONDS:g}",
        ["", "choose", "simulate", "total"],
        [[str(row["case"]), *(f"{row[key]:.1f}" for key in ("choose_s", "simulate_s", "total_s"))] for row in many],
    )
    result = provenance("simulator_speed.py", sys.argv[1:], 1) | {"rows": rows, "compiled": compiled, "many": many}
    print(f"\nwritten to {write_json('simulator-speed', result)}")


if __name__ == "__main__":
    main()
