"""How well emulated links keep their time: transfers of known durations, one at a time, seen from a rank.

mpirun -n 2 python benchmarks/emulation.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.targets import MEDIAN_LIMIT, PERCENTILE_LIMIT
from benchmarks.world import abort_on_error
from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.runtime import EmulatedRank
from coarse.hardware.links import Link
from coarse.protocol.clock import WallClock
from coarse.protocol.partition import PartitionTable, RankPlace, Role
from coarse.protocol.plan import Placement
from coarse.simulation.job import Job
from coarse.simulation.sites import Site
from coarse.strategy.builtin import Coarse
from coarse.strategy.rounds import Round

DURATIONS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Wall seconds."""
_BYTES_PER_S = 1e9


def link_job() -> Job:
    """A job of one worker, whose messages to itself take a link of 1 GB/s."""
    site = Site(
        links=(Link(name="link", latency_s=0.0, bytes_per_s=_BYTES_PER_S),),
        push={},
        pull={},
        between_devices={},
        between_workers={(0, 0): (0,)},
        adder_bytes_per_s=1e9,
    )
    placement = Placement(
        client_nodes=(0,), device_nodes=(0,), local_proxies=(0,), ranks=(0, 1), planner=Coarse(collective="ring")
    )
    return Job(
        site=site, placement=placement, facts=(), gradients=(), forward_s=0.0, backward_s=0.0, round=Round(by=())
    )


def one_worker_one_device() -> PartitionTable:
    """Rank 0 works, rank 1 is the memory device that a runtime needs."""
    roles = (Role.WORKER, Role.MEMORY_DEVICE)
    places = tuple(RankPlace(rank=rank, roles=role, node="node0", switch="s") for rank, role in enumerate(roles))
    return PartitionTable(places=places, local_proxies=(0,))


def relative_errors(rank: EmulatedRank, duration_s: float, num_transfers: int) -> np.ndarray:
    """Return (num_transfers,) float64: how much longer than its duration each transfer took by the wall clock."""
    link, box, pace, clock = rank.runtime.require_client().link, rank.parts.box, rank.parts.pace, WallClock()
    assert box is not None
    nbytes = round(duration_s / pace.dilation * _BYTES_PER_S)
    arrivals: list[float] = []
    box.on_probe = lambda way, frame, due_s: arrivals.append(clock.now_s())
    errors = np.empty(num_transfers)
    for number in range(num_transfers):
        arrivals.clear()
        began_s = clock.now_s()
        with link.lock:
            box.submit(Submission(pace.now_s(), nbytes, 0, 0, box.endpoint, FabricPort.WORKERS, 0, b""))
            link.ring_bells()
        link.wait_for(lambda: bool(arrivals), 60.0, "a transfer")
        errors[number] = (arrivals[0] - began_s) / duration_s - 1
    box.on_probe = None
    return errors


def main() -> None:
    """Worker 0 measures, prints and writes benchmarks/results/emulation.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dilation", type=float, default=20.0)
    parser.add_argument("--transfers", type=int, default=200, help="of each duration")
    options = parser.parse_args()
    with abort_on_error():
        rank = EmulatedRank(link_job(), one_worker_one_device(), dilation=options.dilation)
        runtime = rank.runtime
        runtime.start()
        if runtime.is_device_only:
            runtime.close()
            return
        rows = []
        for duration_s in DURATIONS_S:
            errors = np.abs(relative_errors(rank, duration_s, options.transfers))
            rows.append(
                {
                    "wall_s": duration_s,
                    "median_error": float(np.median(errors)),
                    "percentile_99_error": float(np.percentile(errors, 99)),
                    "num_transfers": options.transfers,
                }
            )
        runtime.close()
        rank.take_punctuality(0.0)
        report(options.dilation, rows)


def report(dilation: float, rows: list[dict[str, float]]) -> None:
    """The table, the floor, and the file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    def keeps(row: dict[str, float]) -> bool:
        return row["median_error"] <= MEDIAN_LIMIT and row["percentile_99_error"] <= PERCENTILE_LIMIT

    lines = [
        [
            f"{row['wall_s'] * 1e3:g} ms",
            f"{row['median_error']:.2%}",
            f"{row['percentile_99_error']:.2%}",
            "yes" if keeps(row) else "no",
        ]
        for row in rows
    ]
    columns = ["wall time of a transfer", "median error", "99th percentile", "at most 2 % and 5 %"]
    title = f"Emulated transfers against the time that they should take (dilation {dilation:g}, measured)"
    print_table(title, columns, lines)
    kept = [row["wall_s"] for row in rows if keeps(row)]
    failed = [row["wall_s"] for row in rows if not keeps(row)]
    floor_s = min((wall_s for wall_s in kept if wall_s > max(failed, default=0.0)), default=None)
    floor = "none of these" if floor_s is None else f"{floor_s * 1e3:g} ms"
    print(f"\nthe floor below which this machine cannot follow: {floor}")
    result = provenance("emulation.py", sys.argv[1:], 2) | {"dilation": dilation, "floor_wall_s": floor_s, "rows": rows}
    print(f"written to {write_json('emulation', result)}")


if __name__ == "__main__":
    main()
