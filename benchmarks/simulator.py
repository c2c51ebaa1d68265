"""Emulated runs of replayed compute held against the simulator: the same jobs, real ranks and real bytes.

python benchmarks/simulator.py

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

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulation.launch import emulate
from coarse.emulation.order import EmulationOrder
from coarse.errors import ConfigError
from coarse.protocol.config import MODES
from coarse.simulation.training import simulate
from coarse.strategy.named import mode_name

MACHINES = ("aws-g4dn", "aws-p3", "sdsc-p100", "cxl-cz120", "cxl-type3-asic")
"""Those of the paper, and two with CXL memory."""
BATCHES = {"resnet50": 64, "bert-large": 2}
"""Per worker (COARSE V-D)."""
WORKERS = (2, 4)
ON_TWO_NODES = (("aws-p3", "resnet50"),)
"""Machines and models that run on two nodes too."""
STRATEGIES = (
    ("experiments/strategies/hierarchical.py:HierarchicalServer", {}),
    ("experiments/strategies/load_aware.py:LoadAware", {}),
    ("experiments/strategies/diloco.py:DiLoCo", {"every": 2}),
    ("experiments/strategies/top_k.py:TopKGradients", {}),
)
"""Strategies of users' files, and their options; run on one machine."""
MOST_DIFFERENCE = 1e-9
"""Relative, of any worker's iteration."""

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
    has_strategies: bool
    """Whether strategies of users' files run, too."""


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
    parser.add_argument("--built-in-only", action="store_true", help="leave out strategies of files")
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
        has_strategies=not options.built_in_only,
    )


def orders(choice: Choice) -> Iterator[EmulationOrder]:
    """Decided runs: models, machines, nodes, workers, modes; without cells that a machine has no room for."""
    for model in choice.models:
        for machine in choice.machines:
            for num_nodes in (1, 2) if (machine, model) in ON_TWO_NODES else (1,):
                for num_workers in choice.worker_counts:
                    for mode in choice.modes:
                        order = EmulationOrder(
                            machine=machine,
                            model=model,
                            gpu=None,
                            batch=BATCHES[model],
                            precision="fp32",
                            mode=mode,
                            num_workers=num_workers,
                            num_devices={"dense": 1, "allreduce": 0, "coarse": num_workers}[mode],
                            num_iterations=choice.num_iterations,
                            num_nodes=num_nodes,
                            collective="ring",
                            policy="devices",
                        )
                        try:
                            yield order.decided()
                        except ConfigError as error:
                            print(f"left out: {cell_of(order)}: {error}", file=sys.stderr)
    for mode, options in STRATEGIES if choice.has_strategies else ():
        yield EmulationOrder(
            machine="aws-p3", batch=BATCHES["resnet50"], mode=mode, options=options, num_workers=4, num_nodes=2,
            num_iterations=choice.num_iterations,
        ).decided()  # fmt: skip


def cell_of(order: EmulationOrder) -> tuple[object, ...]:
    """What tells a cell from all others."""
    return order.machine, order.model, order.num_nodes, order.num_workers, mode_name(order.mode)


def cell_in(row: Row) -> tuple[object, ...]:
    """The cell of a row."""
    return row["machine"], row["model"], row.get("nodes", 1), row["workers"], row["mode"]


def known_rows(path: Path, num_iterations: int) -> list[Row]:
    """The rows of a result of so many iterations; none where there is no such file."""
    if not path.is_file():
        return []
    rows = json.loads(path.read_text())["rows"]
    return [row for row in rows if "late" in row and row["iterations"] == num_iterations]


def compare(order: EmulationOrder) -> Row:
    """One cell."""
    simulated, emulated = simulate(order.job()), emulate(order)
    wanted = {(row.worker, row.iteration): row.duration_s for row in simulated.iterations}
    found = {(row.worker, row.iteration): row.duration_s for row in emulated.iterations}
    return {
        "machine": order.machine,
        "model": order.model,
        "nodes": order.num_nodes,
        "workers": order.num_workers,
        "mode": mode_name(order.mode),
        "iterations": order.num_iterations,
        "simulated_s": simulated.iteration_s,
        "emulated_s": emulated.iteration_s,
        "difference": max(abs(found[row] / seconds - 1) for row, seconds in wanted.items()),
        "transfers": emulated.num_transfers,
        "late": emulated.num_late,
    }


def report(rows: Sequence[Row]) -> None:
    """The table, and mean and worst difference."""
    from benchmarks.rendering import print_table

    lines = [
        [
            f"{row['machine']}, {row['model']}, {row['workers']} workers, {_nodes(row)}{row['mode']}",
            _milliseconds(row["simulated_s"]),
            _milliseconds(row["emulated_s"]),
            f"{row['difference']:.1e}",
            f"{row['late']} of {row['transfers']}",
            f"{row['wall_s']:g} s",
        ]
        for row in rows
    ]
    print_table("Milliseconds of an iteration", ["", "simulated", "emulated", "difference", "late", "took here"], lines)
    found = differences(rows)
    if found:
        print(f"\nworst relative difference {max(found):.1e}, wanted at most {MOST_DIFFERENCE:g}; {len(found)} cells")
    print(f"written to {write(rows)}")


def write(rows: Sequence[Row]) -> Path:
    """The file, with all that is known by now."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import write_json

    found = differences(rows)
    result = provenance("simulator.py", sys.argv[1:], 1) | {
        "kind": "simulated against emulated",
        "worst_difference": max(found, default=None),
        "rows": list(rows),
    }
    return write_json("simulator", result)


def differences(rows: Sequence[Row]) -> list[float]:
    """Relative differences of all cells."""
    return [float(str(row["difference"])) for row in rows]


def _nodes(row: Row) -> str:
    return f"{row['nodes']} nodes, " if row.get("nodes", 1) != 1 else ""


def _milliseconds(seconds: object) -> str:
    return f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else "-"


if __name__ == "__main__":
    main()
