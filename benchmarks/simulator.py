"""The simulator held against emulated runs: the same jobs, real ranks and real bytes on emulated links.

python benchmarks/simulator.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.emulated.launch import emulate
from coarse.emulated.order import RunOrder
from coarse.emulation.presets import machine_named
from coarse.errors import OverrunError
from coarse.simulation.scenario import Mode, Policy
from coarse.simulation.training import simulate

PRESETS = ("aws-g4dn", "aws-p3", "sdsc-p100")
BATCHES = {"resnet50": 64, "bert-large": 2}
"""Per worker (COARSE V-D)."""
WORKERS = (2, 4)
MEAN_LIMIT, WORST_LIMIT = 0.05, 0.10
"""Relative differences of an iteration's time: on average, and at most."""


def main() -> None:
    """Every cell of the matrix; prints a table and writes benchmarks/results/simulator.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--iterations", type=int, default=2, help="the first is not counted")
    options = parser.parse_args()
    models = options.models.split(",")
    rows = []
    for order in orders(models, [int(count) for count in options.workers.split(",")], options.iterations):
        rows.append(compare(order))
        print(", ".join(str(value) for value in rows[-1].values()), file=sys.stderr, flush=True)
    report(rows)


def orders(models: list[str], worker_counts: list[int], num_iterations: int) -> Iterator[RunOrder]:
    """The matrix: modes, presets, models, workers; without cells for which a machine has too few GPUs."""
    for model in models:
        for preset in PRESETS:
            machine = machine_named(preset)
            for num_workers in worker_counts:
                for mode in Mode:
                    num_devices = {Mode.DENSE: 1, Mode.ALLREDUCE: 0, Mode.COARSE: num_workers}[mode]
                    if num_workers + num_devices > len(machine.gpus):
                        continue
                    yield RunOrder(
                        machine=preset,
                        model=model,
                        gpu=None,
                        batch=BATCHES[model],
                        precision="fp32",
                        mode=mode,
                        num_workers=num_workers,
                        num_devices=num_devices,
                        num_iterations=num_iterations,
                        dilation=0.0,
                    )


def compare(order: RunOrder) -> dict[str, object]:
    """One cell; an emulated run that could not keep up has no result."""
    decided = order.decided(Policy.DEVICES)
    simulated_s = simulate(decided.job()).iteration_s
    row: dict[str, object] = {
        "machine": order.machine,
        "model": order.model,
        "workers": order.num_workers,
        "mode": str(order.mode),
        "simulated_s": simulated_s,
    }
    try:
        emulated = emulate(decided)
    except OverrunError as error:
        return row | {"emulated_s": None, "difference": None, "refused": str(error)}
    return row | {
        "emulated_s": emulated.iteration_s,
        "difference": simulated_s / emulated.iteration_s - 1,
        "dilation": emulated.order.dilation,
        "overrun_share": emulated.overrun_share,
    }


def report(rows: list[dict[str, object]]) -> None:
    """The table, mean and worst difference, and the file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    differences = [abs(row["difference"]) for row in rows if isinstance(row["difference"], float)]
    lines = [
        [
            f"{row['machine']}, {row['model']}, {row['workers']} workers, {row['mode']}",
            _milliseconds(row["simulated_s"]),
            _milliseconds(row["emulated_s"]),
            f"{row['difference']:+.2%}" if isinstance(row["difference"], float) else "refused",
            f"{row['dilation']:.3g}" if "dilation" in row else "-",
        ]
        for row in rows
    ]
    print_table("Milliseconds of an iteration", ["", "simulated", "emulated", "difference", "dilation"], lines)
    mean, worst = fmean(differences), max(differences)
    print(
        f"\nmean difference {mean:.2%} (wanted at most {MEAN_LIMIT:.0%}), worst {worst:.2%} "
        f"(at most {WORST_LIMIT:.0%}), {len(rows) - len(differences)} of {len(rows)} refused"
    )
    result = provenance("simulator.py", sys.argv[1:], 1) | {
        "kind": "simulated against emulated",
        "command": " ".join(["python", "benchmarks/simulator.py", *sys.argv[1:]]),
        "mean_difference": mean,
        "worst_difference": worst,
        "rows": rows,
    }
    print(f"written to {write_json('simulator', result)}")


def _milliseconds(seconds: object) -> str:
    return f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else "-"


if __name__ == "__main__":
    main()
