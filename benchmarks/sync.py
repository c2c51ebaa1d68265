"""Time of one synchronisation: coarse beside Gloo, Open MPI and a memcpy of the same bytes, in one mpirun.

mpirun -n 4 python benchmarks/sync.py --workers 2 --devices 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks import workloads as w
from benchmarks.world import World, abort_on_error, on_workers, open_world

if TYPE_CHECKING:  # devices import none of these
    from benchmarks.comparison import Row
    from benchmarks.contenders.protocol import Contender

CONTENDERS = ("gloo", "openmpi", "coarse", "coarse-device", "bare", "memcpy")
_OWN_REGIONS = frozenset({"coarse", "coarse-device", "bare"})
"""Contenders that have a region of their own for every worker's bytes; the others work in memory that they share."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    num_workers: int
    num_devices: int
    workloads: list[w.Workload]
    contenders: list[str]
    quick: bool
    name: str


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--sizes", help=f"single tensors, default {w.DEFAULT_SIZES}")
    parser.add_argument("--sets", help=f"gradient sets, default {w.DEFAULT_SETS}")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default %(default)s")
    parser.add_argument("--quick", action="store_true", help="three rounds of few workloads, to see that it works")
    parser.add_argument("--name", help="of the file in benchmarks/results, default sync-WORKERS-DEVICES")
    given = parser.parse_args(arguments)
    default_sizes = w.QUICK_SIZES if given.quick else w.DEFAULT_SIZES
    default_sets = w.QUICK_SETS if given.quick else w.DEFAULT_SETS
    contenders = [name.strip() for name in given.contenders.split(",")]
    if unknown := set(contenders) - set(CONTENDERS):
        parser.error(f"unknown contenders {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    try:
        workloads = w.parse_workloads(
            default_sizes if given.sizes is None else given.sizes, default_sets if given.sets is None else given.sets
        )
    except ValueError as error:
        parser.error(str(error))
    return Options(
        num_workers=given.workers,
        num_devices=given.devices,
        workloads=workloads,
        contenders=contenders,
        quick=given.quick,
        name=given.name or f"sync-{given.workers}-{given.devices}",
    )


def main() -> None:
    """Workers measure; devices serve, asleep while a peer has its turn."""
    options = parse_options()
    with abort_on_error():
        world = open_world(options.num_workers, options.num_devices)
        uses_coarse = any(name.startswith("coarse") for name in options.contenders)
        on_workers(world, lambda: measure_all(world, options), uses_coarse=uses_coarse)


def measure_all(world: World, options: Options) -> None:
    """Measure every workload on this worker; worker 0 prints and writes the results."""
    from benchmarks.comparison import rows_of
    from benchmarks.measuring import Track
    from benchmarks.memory_check import require_memory
    from benchmarks.race import race
    from benchmarks.start_line import open_start_line

    assert world.workers is not None
    contenders = [open_contender(name, world) for name in options.contenders]
    track = Track(world, open_start_line(world.workers))
    rows: list[Row] = []
    for workload in options.workloads:
        require_memory(needed_bytes(workload.nbytes, world.num_workers, options.contenders), workload.name)
        effort = w.effort_for(workload, quick=options.quick)
        rows += rows_of(workload, effort, race(track, workload, contenders, effort))
        if world.rank == 0:
            print(f"{workload.name}: {effort.num_rounds} x {effort.num_operations}", file=sys.stderr, flush=True)
    if world.rank == 0:
        report(world, options, rows)


def needed_bytes(nbytes: int, num_workers: int, contenders: Sequence[str]) -> int:
    """Bytes over all ranks: each worker's own memory, regions, and one copy for results or the memcpy's target."""
    return nbytes * num_workers * (2 + len(_OWN_REGIONS.intersection(contenders)))


def open_contender(name: str, world: World) -> Contender:
    """A contender by its name; nothing but what it needs is imported."""
    from benchmarks.contenders.memcpy import Memcpy
    from benchmarks.contenders.open_mpi import OpenMpi

    assert world.workers is not None
    if name == "gloo":
        from benchmarks.contenders.gloo import Gloo, open_gloo

        open_gloo(world.workers)
        return Gloo()
    if name.startswith("coarse"):
        from benchmarks.contenders.coarse_numpy import CoarseCopy, CoarseDevice

        return CoarseDevice() if name == "coarse-device" else CoarseCopy()
    if name == "bare":
        from benchmarks.contenders.bare_sum import BareSum

        return BareSum(world.workers)
    return OpenMpi(world.workers) if name == "openmpi" else Memcpy(world.workers.rank)


def report(world: World, options: Options, rows: list[Row]) -> None:
    """Print the tables and write the JSON file."""
    from benchmarks.comparison import ratios_of
    from benchmarks.provenance import provenance
    from benchmarks.rendering import write_json
    from benchmarks.sync_table import print_sync_table

    print_sync_table(rows, world.num_workers, world.num_devices)
    result = provenance("sync.py", sys.argv[1:], world.num_workers + world.num_devices) | {
        "num_workers": world.num_workers,
        "num_devices": world.num_devices,
        "dtype": w.DTYPE.name,
        "gloo": "buckets as DDP, gradient_as_bucket_view=True: no copies into or out of buckets",
        "rows": [row.as_json() for row in rows],
        "ratios": ratios_of(rows),
    }
    print(f"\nwritten to {write_json(options.name, result)}")


if __name__ == "__main__":
    main()
