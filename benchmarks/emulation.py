"""Emulated transfers beside what the machine's links say: pushes and pulls, alone and both at once.

mpirun -n 4 python benchmarks/emulation.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.targets import MOST_ERROR
from benchmarks.world import abort_on_error
from coarse.emulation.envelope import FabricPort
from coarse.emulation.order import EmulationOrder
from coarse.emulation.runtime import EmulatedRank
from coarse.hardware.fabric import Fabric
from coarse.hardware.links import path_alone_s
from coarse.protocol.units import KIB
from coarse.simulation.sites import Site

MACHINES = ("cxl-cz120", "cxl-niagara2", "aws-p3")
SIZES = tuple(4 * KIB << shift for shift in range(0, 15, 2))
"""4 KiB to 64 MiB."""
BOTH = "both at once"


def emulated_s(rank: EmulatedRank, ways: tuple[FabricPort, ...], device: int, nbytes: int) -> float:
    """Return the seconds until transfers of worker 0 that begin together have ended."""
    link, box = rank.runtime.require_client().link, rank.parts.box
    assert box is not None
    ends_s: list[float] = []
    begin_s = box.now_s
    with link.lock:
        for way in ways:
            ends = (0, device) if way is FabricPort.PUSH else (device, 0)
            box.spend(way, nbytes, *ends, ends_s.append)
        link.ring_bells()
    link.wait_for(lambda: len(ends_s) == len(ways), 60.0, "transfers")
    return max(ends_s) - begin_s


def expected_s(site: Site, ways: tuple[FabricPort, ...], device: int, nbytes: int) -> float:
    """Return the same as latency and rate of the links say; of several transfers, as the links are shared fairly."""
    paths = [site.push[0, device] if way is FabricPort.PUSH else site.pull[0, device] for way in ways]
    if len(paths) == 1:
        return path_alone_s([site.links[link] for link in paths[0]], nbytes)
    fabric = Fabric(site.links)
    for number, path in enumerate(paths):
        fabric.start(number, path, nbytes, 0.0)
    ended_s = 0.0
    while (due_s := fabric.next_s()) is not None:
        ended_s = max([ended_s, *(at_s for at_s, _ in fabric.advance(due_s))])
    return ended_s


def rows_of(machine: str) -> list[dict[str, object]]:
    """All transfers on one machine; none on ranks other than worker 0."""
    order = EmulationOrder(machine=machine, mode="coarse", num_workers=2, num_devices=2, policy="devices").decided()
    job = order.job()
    rank = EmulatedRank(job, order.partition(job))
    runtime = rank.runtime
    runtime.start()
    rows: list[dict[str, object]] = []
    if runtime.client_index == 0:
        device = job.placement.local_proxies[0]
        for name, ways in (
            ("push", (FabricPort.PUSH,)), ("pull", (FabricPort.PULL,)), (BOTH, (FabricPort.PUSH, FabricPort.PULL))
        ):  # fmt: skip
            for nbytes in SIZES:
                began_s = time.perf_counter()
                found_s, wanted_s = emulated_s(rank, ways, device, nbytes), expected_s(job.site, ways, device, nbytes)
                rows.append({
                    "machine": machine, "transfers": name, "nbytes": nbytes, "emulated_s": found_s,
                    "expected_s": wanted_s, "error": abs(found_s / wanted_s - 1),
                    "wall_s": time.perf_counter() - began_s,
                })  # fmt: skip
    if runtime.client_index is not None:
        assert rank.parts.box is not None
        with rank.parts.box.away():
            runtime.worker_comm.Barrier()
    runtime.close()
    rank.take_report()
    return rows


def main() -> None:
    """Worker 0 prints and writes benchmarks/results/emulation.json."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with abort_on_error():
        rows = [row for machine in MACHINES for row in rows_of(machine)]
        if rows:
            report(rows)


def report(rows: list[dict[str, object]]) -> None:
    """The table and the file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        errors.setdefault((str(row["machine"]), str(row["transfers"])), []).append(float(str(row["error"])))
    lines = [[machine, name, str(len(found)), f"{max(found):.1e}"] for (machine, name), found in errors.items()]
    title = "Emulated transfers of 4 KiB to 64 MiB beside latency and rate of their links (emulated)"
    print_table(title, ["machine", "transfers", "sizes", "worst error"], lines)
    worst = max(float(str(row["error"])) for row in rows)
    print(f"\nworst relative error {worst:.1e}, wanted at most {MOST_ERROR:g}")
    result = provenance("emulation.py", sys.argv[1:], 4) | {"kind": "emulated", "worst_error": worst, "rows": rows}
    print(f"written to {write_json('emulation', result)}")


if __name__ == "__main__":
    main()
