"""What names cost that nobody has used: many small tensors, pushed under new names and under the same names again.

mpirun -n 4 python benchmarks/first_names.py --workers 2 --devices 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

from benchmarks.world import World, abort_on_error, on_workers, open_world

NUM_NAMES = 2000
MOST_SECONDS = 0.3
"""For as many new names, their first push and its result included."""
_NUMEL = 1024


def main() -> None:
    """All workers push all names at once, new ones in each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--names", type=int, default=NUM_NAMES)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with abort_on_error():
        world = open_world(options.workers, options.devices)
        on_workers(world, lambda: measure(world, options.names, options.rounds), uses_coarse=True)


def measure(world: World, num_names: int, num_rounds: int) -> None:
    """Seconds of each round on this worker, of which worker 0 reports."""
    arrays = [np.ones(_NUMEL, np.float32) for _ in range(num_names)]
    first_s, again_s = [], []
    for number in range(num_rounds + 1):  # the first is to warm up
        first_s.append(pushed(arrays, f"names{number}/"))
        again_s.append(pushed(arrays, f"names{number}/"))
    if world.rank == 0:
        report(world, num_names, first_s[1:], again_s[1:])


def pushed(arrays: list[np.ndarray], prefix: str) -> float:
    """Seconds until all results have come, from when all workers were here."""
    import coarse

    coarse.barrier()
    start_s = time.perf_counter()
    handles = [coarse.push_pull_async(array, f"{prefix}{number}") for number, array in enumerate(arrays)]
    for handle in handles:
        handle.wait()
    return time.perf_counter() - start_s


def report(world: World, num_names: int, first_s: list[float], again_s: list[float]) -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    found = {"new names": statistics.median(first_s), "the same names again": statistics.median(again_s)}
    print_table(
        f"Seconds for {num_names} tensors of {_NUMEL * 4 // 1024} KiB, pushed at once and waited for; medians of "
        f"{len(first_s)} rounds, measured",
        ["names", "seconds", "least", "most"],
        [
            [what, f"{found[what]:.3f}", f"{min(seconds):.3f}", f"{max(seconds):.3f}"]
            for what, seconds in zip(found, (first_s, again_s), strict=True)
        ],
    )
    result = provenance("first_names.py", sys.argv[1:], world.num_workers + world.num_devices) | {
        "num_names": num_names,
        "first_s": first_s,
        "again_s": again_s,
        "median_first_s": found["new names"],
        "median_again_s": found["the same names again"],
    }
    print(f"\nwritten to {write_json(f'first-names-{world.num_workers}-{world.num_devices}', result)}")


if __name__ == "__main__":
    main()
