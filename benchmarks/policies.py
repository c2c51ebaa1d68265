"""What the policies of the mode coarse choose, against all there is to choose from, and against all-reduce.

python benchmarks/policies.py

For each preset, model, number of workers and of memory devices: the policy "auto", the policy "paper" (COARSE
III-F), all-reduce, and a sweep over every split m (how many gradients go to the memory devices) with each set of
routing tables that "auto" may take. All of that is simulated, with the compute of the preset's GPU. For a few
cells the chosen split, some others and all-reduce are run live on emulated links as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulation.launch import emulate
from coarse.emulation.order import EmulationOrder
from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.hardware.placement import place
from coarse.hardware.presets import machine_named, preset_names
from coarse.simulation.job import Job
from coarse.simulation.training import simulate
from coarse.strategy.builtin import tables_of
from coarse.strategy.routing import local_tables

BATCHES = {"resnet50": 64, "bert-large": 2}
"""Per worker (COARSE V-D)."""
WORKERS = (2, 4)
WORKERS_PER_DEVICE = (1, 2)
EMULATED_MACHINES = ("aws-p3", "sdsc-p100")
EMULATED_MODEL, EMULATED_WORKERS = "resnet50", 2
_EMULATED_ITERATIONS = 2
"""The first is not counted."""
_NUM_ITERATIONS = 4
"""Of what is compared, all of which count: workers may fall out of step, and then iterations take turns in length."""
_SWEEP_ITERATIONS, _FINALISTS = 2, 5
"""Of every split in the sweep; so many of the fastest run on."""
MOST_OVER_BEST, MOST_OVER_ALLREDUCE = 1.03, 1.02
"""What "auto" may take over the best of the sweep, and over all-reduce."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One job to decide about."""

    machine: str
    model: str
    num_workers: int
    num_devices: int
    num_nodes: int

    def __str__(self) -> str:
        nodes = f", {self.num_nodes} nodes" if self.num_nodes > 1 else ""
        return f"{self.machine}, {self.model}, {self.num_workers}:{self.num_devices}{nodes}"

    def order(self, mode: str, num_iterations: int = _NUM_ITERATIONS) -> EmulationOrder:
        """The cell as a run of one mode."""
        return EmulationOrder(
            machine=self.machine,
            model=self.model,
            gpu=None,
            batch=BATCHES[self.model],
            precision="fp32",
            mode=mode,
            num_workers=self.num_workers,
            num_devices=self.num_devices if mode == "coarse" else 0,
            num_iterations=num_iterations,
            num_nodes=self.num_nodes,
        )


def main() -> None:
    """Every cell; prints tables and writes benchmarks/results/policies.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(preset_names()))
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--emulate", default=",".join(EMULATED_MACHINES), help="machines to run live on; '' for none")
    parser.add_argument("--processes", type=int, default=1, help="that simulate at the same time")
    options = parser.parse_args()
    worker_counts = [int(count) for count in options.workers.split(",")]
    chosen = list(cells(options.machines.split(","), options.models.split(","), worker_counts))
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(shown(pool.map(simulated_row, chosen)))
    machines = [machine for machine in options.emulate.split(",") if machine]
    report(rows, [row for machine in machines for row in shown(emulated_rows(machine))])


def shown(rows: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """The rows, each on standard error as it comes."""
    for row in rows:
        print(", ".join(str(value) for value in row.values()), file=sys.stderr, flush=True)
        yield row


def cells(machines: Sequence[str], models: Sequence[str], worker_counts: Sequence[int]) -> Iterator[Cell]:
    """All jobs that have room, on as few nodes as they need, and on two where a preset has several."""
    for model in models:
        for name in machines:
            machine = machine_named(name)
            for num_workers in worker_counts:
                for share in WORKERS_PER_DEVICE:
                    num_devices = num_workers // share
                    least = least_nodes(machine, num_workers, num_devices)
                    for num_nodes in sorted({least, max(least, 2)} if machine.num_nodes > 1 else {least}):
                        if least and not num_devices % num_nodes:
                            yield Cell(
                                machine=name,
                                model=model,
                                num_workers=num_workers,
                                num_devices=num_devices,
                                num_nodes=num_nodes,
                            )


def least_nodes(machine: Machine, num_workers: int, num_devices: int) -> int:
    """The fewest nodes of a machine on which a job has room; 0 where it never has."""
    for num_nodes in range(1, num_workers + 1 if machine.network else 2):
        try:
            place(
                replace(machine, num_nodes=max(machine.num_nodes, num_nodes)),
                num_workers=num_workers,
                num_devices=num_devices,
                num_nodes=num_nodes,
            )
        except ConfigError:
            continue
        return num_nodes
    return 0


def simulated_row(cell: Cell) -> dict[str, object]:
    """What each policy's choice takes, and the best there is; kind: simulated."""
    order = cell.order("coarse")
    devices = replace(order, policy="devices").scenario().job()
    choices = [replace(job, num_iterations=_SWEEP_ITERATIONS) for job in every_choice(devices)]
    finalists = [replace(job, num_iterations=_NUM_ITERATIONS) for job in sorted(choices, key=mean_s)[:_FINALISTS]]
    auto, paper = (replace(order, policy=policy).scenario().job() for policy in ("auto", "paper"))
    allreduce_s = mean_s(cell.order("allreduce").scenario().job())
    auto_s, paper_s = mean_s(auto), mean_s(paper)
    best_s, best_split = min((mean_s(job), job.num_to_devices) for job in (*finalists, auto, paper))
    return {
        **asdict(cell),
        "gradients": len(auto.gradients),
        "auto_split": auto.num_to_devices,
        "best_split": best_split,
        "paper_split": paper.num_to_devices,
        "auto_s": auto_s,
        "best_s": best_s,
        "paper_s": paper_s,
        "allreduce_s": allreduce_s,
        "auto_over_best": auto_s / best_s,
        "auto_over_allreduce": auto_s / allreduce_s,
        "paper_over_allreduce": paper_s / allreduce_s,
    }


def mean_s(job: Job) -> float:
    """Mean simulated seconds of all iterations over workers."""
    return fmean(row.duration_s for row in simulate(job).iterations)


def every_choice(job: Job) -> Iterator[Job]:
    """Every split with each set of routing tables that "auto" may take."""
    for facts in dict.fromkeys((job.facts, local_tables(tables_of(job.facts), job.placement.local_proxies))):
        for split in range(len(job.gradients) + 1):
            yield replace(job, facts=facts).with_split(split)


def emulated_rows(machine: str) -> Iterator[dict[str, object]]:
    """The choice of "auto", all-reduce and other splits, each as a live run; kind: emulated."""
    workers = EMULATED_WORKERS
    cell = Cell(machine=machine, model=EMULATED_MODEL, num_workers=workers, num_devices=workers, num_nodes=1)
    auto = cell.order("coarse", _EMULATED_ITERATIONS).decided()
    everything = replace(cell.order("coarse", _EMULATED_ITERATIONS), policy="devices").decided()
    allreduce = cell.order("allreduce", _EMULATED_ITERATIONS).decided()
    num_gradients = everything.num_to_devices
    splits = sorted({num_gradients * part // 4 for part in (1, 2, 3, 4)} - {auto.num_to_devices})
    runs = [("all-reduce", allreduce), ("auto", auto)]
    runs += [("sweep", everything.with_split(split)) for split in splits]
    for name, order in runs:
        simulated_s = mean_s(order.job())
        row = {**asdict(cell), "choice": name, "split": order.num_to_devices, "simulated_s": simulated_s}
        yield row | {"emulated_s": emulate(order).iteration_s}


def report(rows: Sequence[dict[str, object]], emulated: Sequence[dict[str, object]]) -> None:
    """The tables, how many cells miss what is wanted, and the file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import milliseconds, print_table, write_json

    def lines(found: Sequence[dict[str, object]], *columns: tuple[str, Callable[..., str]]) -> list[list[str]]:
        return [[_name(row), *(show(row[key]) for key, show in columns)] for row in found]

    spans = [(f"{name}_s", milliseconds) for name in ("auto", "best", "allreduce", "paper")]
    ratios = [(f"{name}", _ratio) for name in ("auto_over_best", "auto_over_allreduce", "paper_over_allreduce")]
    splits = [(f"{name}_split", str) for name in ("auto", "best", "paper")]
    headings = ["auto", "best", "all-reduce", "paper", "auto / best", "auto / all-reduce", "paper / all-reduce"]
    print_table(
        "Milliseconds of an iteration (simulated), and gradients on the memory devices",
        ["", *headings, "m auto", "m best", "m paper"],
        lines(rows, *spans, *ratios, *splits),
    )
    summary = {}
    for key, most in (("auto_over_best", MOST_OVER_BEST), ("auto_over_allreduce", MOST_OVER_ALLREDUCE)):
        found = [float(str(row[key])) for row in rows]
        summary[key] = {"worst": max(found), "wanted": most, "misses": sum(ratio > most for ratio in found)}
        print(f"{key}: worst {max(found):.4f}, wanted at most {most}; {summary[key]['misses']} of {len(found)} miss")
    if emulated:
        columns = ["", "choice", "m", "emulated", "simulated"]
        fields = [("choice", str), ("split", str), ("emulated_s", milliseconds), ("simulated_s", milliseconds)]
        print_table("Milliseconds of an iteration (emulated)", columns, lines(emulated, *fields))
    result = provenance("policies.py", sys.argv[1:], 1) | {
        "kind": "simulated; emulated where a row says so",
        "summary": summary,
        "simulated": list(rows),
        "emulated": list(emulated),
    }
    print(f"written to {write_json('policies', result)}")


def _name(row: dict[str, object]) -> str:
    return str(Cell(**{key: row[key] for key in Cell.__dataclass_fields__}))  # type: ignore[arg-type]


def _ratio(value: object) -> str:
    return f"{value:.3f}"


if __name__ == "__main__":
    main()
