"""Time of a training step of the demo's GPT: unsynchronised, with DDP on Gloo and with coarse, in one mpirun.

mpirun -n 4 python benchmarks/step.py --workers 2 --devices 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.world import World, abort_on_error, on_workers, open_world

if TYPE_CHECKING:  # devices import none of these
    from benchmarks.step_rows import StepRow

CONTENDERS = ("none", "ddp", "coarse")
DEFAULT_ROWS, QUICK_ROWS = "1,2,4,8,16,32", "2,8"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure; `rows` are the sizes of a worker's batch."""

    num_workers: int
    num_devices: int
    rows: list[int]
    contenders: list[str]
    num_rounds: int
    name: str


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rows", help=f"sizes of a worker's batch, default {DEFAULT_ROWS}")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds of two batch sizes, to see that it works")
    parser.add_argument("--name", help="of the file in benchmarks/results, default step-WORKERS-DEVICES")
    given = parser.parse_args(arguments)
    rows = given.rows or (QUICK_ROWS if given.quick else DEFAULT_ROWS)
    contenders = [name.strip() for name in given.contenders.split(",")]
    if unknown := set(contenders) - set(CONTENDERS):
        parser.error(f"unknown contenders {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    if "none" not in contenders:
        parser.error("'none' must be among the contenders: what the others add is counted from it")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in rows.split(",")):
        parser.error(f"--rows is a list of positive numbers like {DEFAULT_ROWS}, got {rows!r}")
    return Options(
        num_workers=given.workers,
        num_devices=given.devices,
        rows=[int(size) for size in rows.split(",")],
        contenders=contenders,
        num_rounds=3 if given.quick else given.rounds,
        name=given.name or f"step-{given.workers}-{given.devices}",
    )


def main() -> None:
    """Workers train; devices serve, asleep while a peer has its turn."""
    options = parse_options()
    with abort_on_error():
        world = open_world(options.num_workers, options.num_devices)
        on_workers(world, lambda: measure_all(world, options), uses_coarse="coarse" in options.contenders)


def measure_all(world: World, options: Options) -> None:
    """Measure every batch size on this worker; worker 0 prints and writes the results."""
    from benchmarks.measuring import Track
    from benchmarks.start_line import open_start_line
    from benchmarks.step_rows import step_rows
    from benchmarks.training import open_trainees, race_steps, require_equal_parameters

    assert world.workers is not None
    track = Track(world, open_start_line(world.workers))
    trainees = open_trainees(options.contenders, world.workers)
    rows: list[StepRow] = []
    for num_rows in options.rows:
        measurements = race_steps(track, trainees, num_rows, options.num_rounds)
        rows += step_rows(num_rows, trainees[0].gradient_bytes, measurements)
        if world.rank == 0:
            print(f"{num_rows} rows a worker: {options.num_rounds} rounds", file=sys.stderr, flush=True)
    for trainee in trainees:
        require_equal_parameters(trainee, world.workers)
    if world.rank == 0:
        report(world, options, rows)


def report(world: World, options: Options, rows: list[StepRow]) -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import write_json
    from benchmarks.step_rows import print_step_table

    print_step_table(rows, world.num_workers, world.num_devices)
    result = provenance("step.py", sys.argv[1:], world.num_workers + world.num_devices) | {
        "num_workers": world.num_workers,
        "num_devices": world.num_devices,
        "ddp": "Gloo, gradient_as_bucket_view=True",
        "rows": [row.as_json() for row in rows],
    }
    print(f"\nwritten to {write_json(options.name, result)}")


if __name__ == "__main__":
    main()
