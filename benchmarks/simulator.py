"""The simulator held against emulated runs: the same jobs, real ranks and real bytes on emulated links.

python benchmarks/simulator.py

A cell of BERT-large takes one to two minutes on a quiet machine of two cores, one of ResNet-50 a quarter of one.
Every cell is written as soon as it is there; `--resume` keeps what the file has of the asked-for iterations and
runs the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulation.launch import emulate
from coarse.emulation.order import RunOrder
from coarse.errors import ConfigError, OverrunError
from coarse.protocol.config import MODES
from coarse.simulation.training import simulate

MACHINES = ("aws-g4dn", "aws-p3", "sdsc-p100")
"""Those of the paper."""
BATCHES = {"resnet50": 64, "bert-large": 2}
"""Per worker (COARSE V-D)."""
WORKERS = (2, 4)
ON_TWO_NODES = (("aws-p3", "resnet50"),)
"""Machines and models that run on two nodes too."""
MEAN_LIMIT, WORST_LIMIT = 0.05, 0.10
"""Relative differences of an iteration's time: on average, and at most."""

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The part of the matrix that is asked for."""

    machines: Sequence[str]
    models: Sequence[str]
    worker_counts: Sequence[int]
    modes: Sequence[str]
    num_iterations: int
    is_resumed: bool


def main() -> None:
    """Every cell of the matrix; prints a table and writes benchmarks/results/simulator.json."""
    from benchmarks.rendering import RESULTS_FOLDER

    choice = parse_options(sys.argv[1:])
    path = RESULTS_FOLDER / "simulator.json"
    rows: list[Row] = known_rows(path, choice.num_iterations) if choice.is_resumed else []
    for order in orders(choice):
        if cell_of(order) in map(cell_in, rows):
            continue
        begin_s = time.perf_counter()
        rows.append(compare(order) | {"wall_s": round(time.perf_counter() - begin_s, 1)})
        print(", ".join(str(value) for value in rows[-1].values()), file=sys.stderr, flush=True)
        write(rows)
    report(rows)


def parse_options(arguments: Sequence[str]) -> Choice:
    """The part of the matrix that some arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--iterations", type=int, default=2, help="the first is not counted")
    parser.add_argument("--resume", action="store_true", help="leave out cells that the result has")
    options = parser.parse_args(arguments)
    modes, models = options.modes.split(","), options.models.split(",")
    for key, names, known in (("modes", modes, list(MODES)), ("models", models, list(BATCHES))):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"unknown {key} {', '.join(unknown)}; there are: {', '.join(known)}")
    if options.iterations < 2:
        parser.error("--iterations must be at least 2, since the first is not counted")
    return Choice(
        machines=options.machines.split(","),
        models=models,
        worker_counts=[int(count) for count in options.workers.split(",")],
        modes=modes,
        num_iterations=options.iterations,
        is_resumed=options.resume,
    )


def orders(choice: Choice) -> Iterator[RunOrder]:
    """Decided runs: models, machines, nodes, workers, modes; without cells that a machine has no room for."""
    for model in choice.models:
        for machine in choice.machines:
            for num_nodes in (1, 2) if (machine, model) in ON_TWO_NODES else (1,):
                for num_workers in choice.worker_counts:
                    for mode in choice.modes:
                        order = RunOrder(
                            machine=machine,
                            model=model,
                            gpu=None,
                            batch=BATCHES[model],
                            precision="fp32",
                            mode=mode,
                            num_workers=num_workers,
                            num_devices={"dense": 1, "allreduce": 0, "coarse": num_workers}[mode],
                            num_iterations=choice.num_iterations,
                            dilation=0.0,
                            num_nodes=num_nodes,
                            collective="ring",
                            policy="devices",
                        )
                        try:
                            yield order.decided()
                        except ConfigError as error:
                            print(f"left out: {cell_of(order)}: {error}", file=sys.stderr)


def cell_of(order: RunOrder) -> tuple[object, ...]:
    """What tells a cell from all others."""
    return order.machine, order.model, order.num_nodes, order.num_workers, str(order.mode)


def cell_in(row: Row) -> tuple[object, ...]:
    """The cell of a row."""
    return row["machine"], row["model"], row.get("nodes", 1), row["workers"], row["mode"]


def known_rows(path: Path, num_iterations: int) -> list[Row]:
    """The rows of a result that have a time, of so many iterations; none where there is no such file."""
    if not path.is_file():
        return []
    rows = json.loads(path.read_text())["rows"]
    return [row for row in rows if row["emulated_s"] is not None and row.get("iterations", 2) == num_iterations]


def compare(order: RunOrder) -> Row:
    """One cell; an emulated run that could not keep up has no result."""
    simulated_s = simulate(order.job()).iteration_s
    row: Row = {
        "machine": order.machine,
        "model": order.model,
        "nodes": order.num_nodes,
        "workers": order.num_workers,
        "mode": str(order.mode),
        "iterations": order.num_iterations,
        "simulated_s": simulated_s,
    }
    try:
        emulated = emulate(order)
    except OverrunError as error:
        return row | {"emulated_s": None, "difference": None, "refused": str(error)}
    return row | {
        "emulated_s": emulated.iteration_s,
        "difference": simulated_s / emulated.iteration_s - 1,
        "dilation": emulated.order.dilation,
        "overrun_share": emulated.overrun_share,
    }


def report(rows: Sequence[Row]) -> None:
    """The table, and mean and worst difference."""
    from benchmarks.rendering import print_table

    lines = [
        [
            f"{row['machine']}, {row['model']}, {row['workers']} workers, {_nodes(row)}{row['mode']}",
            _milliseconds(row["simulated_s"]),
            _milliseconds(row["emulated_s"]),
            f"{row['difference']:+.2%}" if isinstance(row["difference"], float) else "refused",
            f"{row['dilation']:.3g}" if "dilation" in row else "-",
        ]
        for row in rows
    ]
    print_table("Milliseconds of an iteration", ["", "simulated", "emulated", "difference", "dilation"], lines)
    found = differences(rows)
    if found:
        print(
            f"\nmean difference {fmean(found):.2%} (wanted at most {MEAN_LIMIT:.0%}), worst {max(found):.2%} "
            f"(at most {WORST_LIMIT:.0%}), {len(rows) - len(found)} of {len(rows)} refused"
        )
    print(f"written to {write(rows)}")


def write(rows: Sequence[Row]) -> Path:
    """The file, with all that is known by now."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import write_json

    found = differences(rows)
    result = provenance("simulator.py", sys.argv[1:], 1) | {
        "kind": "simulated against emulated",
        "mean_difference": fmean(found) if found else None,
        "worst_difference": max(found, default=None),
        "rows": list(rows),
    }
    return write_json("simulator", result)


def differences(rows: Sequence[Row]) -> list[float]:
    """Absolute relative differences of all cells that have one."""
    return [abs(row["difference"]) for row in rows if isinstance(row["difference"], float)]


def _nodes(row: Row) -> str:
    return f"{row['nodes']} nodes, " if row.get("nodes", 1) != 1 else ""


def _milliseconds(seconds: object) -> str:
    return f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else "-"


if __name__ == "__main__":
    main()
