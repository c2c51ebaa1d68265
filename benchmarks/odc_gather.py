"""Bandwidth at which all workers gather a unit at once: point to point (odc) and by a collective (fsdp, Gloo).

mpirun -n 5 python benchmarks/odc_gather.py                                      four workers on one node
coarse run --cluster 2x2 --rate 1gbit benchmarks/odc_gather.py                   on two nodes in a box; needs root

ODC's figure 11: within a node alike, between nodes point to point is slower. Bytes gathered by a worker per second,
median over repeats; results go to benchmarks/results/odc-gather-NODES.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard

import coarse
import coarse.torch as ct
from benchmarks.contenders.gloo import open_gloo
from benchmarks.provenance import provenance
from coarse.protocol.clock import WallClock
from coarse.protocol.units import KIB, MIB
from coarse.session import current

RESULTS = Path(__file__).parent / "results"
MODES: dict[str, dict[str, Any]] = {
    "odc": {"mode": "odc"}, "odc, cache": {"mode": "odc", "cache": True}, "fsdp": {"mode": "fsdp"}
}  # fmt: skip
TORCH = "torch's FSDP2 on Gloo"


def sharded(way: str, num_elements: int) -> Any:  # noqa: ANN401
    """A unit of one parameter."""
    module = nn.Linear(num_elements // 1024, 1024, bias=False)
    if way == TORCH:
        return torch_fully_shard(module, mesh=init_device_mesh("cpu", (coarse.size(),)))
    return ct.fully_shard(module, **MODES[way])


def gather_s(unit: Any, repeats: int, *, is_odc: bool) -> list[float]:  # noqa: ANN401
    """Of each gather, all workers at once, of values that are new each time."""
    clock, found = WallClock(), []
    for _ in range(repeats + 1):
        with torch.no_grad():
            for parameter in unit.parameters():
                parameter.add_(1.0)
        if is_odc:
            ct.publish(unit)
        coarse.barrier()
        began_s = clock.now_s()
        unit.unshard()
        found.append(clock.now_s() - began_s)
        unit.reshard()
        coarse.barrier()
        if is_odc:
            ct.end_minibatch(unit)
    return found[1:]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, (64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB))))
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    coarse.init()
    torch.set_num_threads(1)
    num_nodes = len(set(current().placement.client_nodes))
    if num_nodes == 1:
        open_gloo(current().require_users_comm())
    rows = []
    for nbytes in map(int, given.sizes.split(",")):
        for way in [*MODES, *([TORCH] if num_nodes == 1 else [])]:
            unit = sharded(way, nbytes // 4)
            took_s = gather_s(unit, given.repeats, is_odc=way.startswith("odc"))
            rows.append({"bytes": nbytes, "way": way, "seconds": took_s, "bytes_per_s": nbytes / median(took_s)})
    if coarse.rank() == 0:
        for row in rows:
            base = next(one for one in rows if one["bytes"] == row["bytes"] and one["way"] == "fsdp")
            print(
                f"{num_nodes} nodes  {row['bytes'] / MIB:7.3f} MiB  {row['way']:22} {row['bytes_per_s'] / 1e6:8.1f} "
                f"MB/s, {row['bytes_per_s'] / base['bytes_per_s']:.2f} times fsdp  (measured)"
            )
        origin = provenance("odc_gather.py", sys.argv[1:], coarse.size())
        (RESULTS / f"odc-gather-{num_nodes}.json").write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()
    coarse.shutdown()


if __name__ == "__main__":
    main()
