"""CPU that an idle memory device uses: milliseconds per second, after it has served some traffic.

mpirun -n 4 python benchmarks/idle.py --workers 2 --devices 2
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

from benchmarks.cpu_clocks import cpu_s_of
from benchmarks.world import World, abort_on_error, on_workers, open_world

ALLOWED_CPU_S_PER_S = 5e-3
_SETTLE_S = 1.0
_NUM_PUSHES = 20
_NUMEL = 2**20


def main() -> None:
    """Workers sleep while worker 0 reads the devices' clocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with abort_on_error():
        world = open_world(options.workers, options.devices)
        on_workers(world, lambda: measure(world, options.seconds), uses_coarse=True)


def measure(world: World, duration_s: float) -> None:
    """Give the devices something to do, leave them alone, and see what they use."""
    from benchmarks.start_line import open_start_line

    assert world.workers is not None
    start_line = open_start_line(world.workers)
    make_traffic()
    start_line.wait()
    if world.rank == 0:
        time.sleep(_SETTLE_S)
        shares = idle_shares(world.device_process_ids, duration_s)
        report(world, duration_s, shares)
    start_line.wait()


def make_traffic() -> None:
    """Sums of 4 MiB, so that whatever a device starts on demand has been started."""
    import coarse

    array = np.ones(_NUMEL, dtype=np.float32)
    for _ in range(_NUM_PUSHES):
        coarse.push_pull(array, "idle.traffic", op=coarse.Sum)


def idle_shares(process_ids: tuple[int, ...], duration_s: float) -> list[float]:
    """CPU seconds per second of each process over `duration_s`."""
    before_s = [cpu_s_of([process_id]) for process_id in process_ids]
    start_s = time.perf_counter()
    time.sleep(duration_s)
    elapsed_s = time.perf_counter() - start_s
    return [(cpu_s_of([pid]) - cpu_s) / elapsed_s for pid, cpu_s in zip(process_ids, before_s, strict=True)]


def report(world: World, duration_s: float, shares: list[float]) -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import milliseconds, print_table, write_json

    rows = [
        {"device": device, "cpu_s_per_s": share, "is_allowed": share <= ALLOWED_CPU_S_PER_S}
        for device, share in enumerate(shares)
    ]
    print_table(
        f"CPU of idle memory devices over {duration_s:g} s, measured; allowed {milliseconds(ALLOWED_CPU_S_PER_S)} ms/s",
        ["device", "ms per s", "allowed"],
        [
            [str(device), milliseconds(share), "yes" if share <= ALLOWED_CPU_S_PER_S else "no"]
            for device, share in enumerate(shares)
        ],
    )
    result = provenance("idle.py", sys.argv[1:], world.num_workers + world.num_devices) | {
        "duration_s": duration_s,
        "allowed_cpu_s_per_s": ALLOWED_CPU_S_PER_S,
        "rows": rows,
    }
    print(f"\nwritten to {write_json(f'idle-{world.num_workers}-{world.num_devices}', result)}")


if __name__ == "__main__":
    main()
