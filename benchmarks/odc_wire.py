"""Bytes between nodes and seconds of a minibatch: on-demand communication with and without what nodes keep, FSDP, FCDP.

coarse run --cluster 2x2 --rate 100mbit benchmarks/odc_wire.py     two nodes in a box; needs root

Bytes are counted where they are sent and held against the formulas of docs/odc.md. Results go to
benchmarks/results/odc-wire.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

import coarse
import coarse.torch as ct
from benchmarks.provenance import provenance
from coarse.protocol.clock import WallClock
from coarse.session import current

RESULTS = Path(__file__).parent / "results" / "odc-wire.json"
MODES: dict[str, dict[str, Any]] = {
    "odc": {"mode": "odc"}, "odc, float32": {"mode": "odc", "sum": "float32"},
    "odc + cache": {"mode": "odc", "cache": True},
    "odc + cache, float32": {"mode": "odc", "cache": True, "sum": "float32"}, "fsdp": {"mode": "fsdp"},
    "fcdp": {"mode": "fcdp"},
}  # fmt: skip
MICROBATCHES = 4


def net(layers: int, width: int) -> nn.Module:
    """Units of the same size, and a root without parameters of its own."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(layers)])


def wanted_bytes(name: str, nbytes: int, num_nodes: int, workers_of_node: int) -> float:
    """What a node sends in a minibatch: W gathered, W_t of gradients, both float32 here."""
    far = (num_nodes - 1) / num_nodes * nbytes
    pieces = MICROBATCHES * workers_of_node * far
    return {
        "odc": 3 * pieces, "odc, float32": 3 * pieces, "odc + cache": far + 4 * far, "odc + cache, float32": 2 * far,
        "fsdp": MICROBATCHES * 3 * far, "fcdp": far + MICROBATCHES * far,
    }[name]  # fmt: skip


def sent_bytes() -> float:
    """By all workers and devices to other nodes, so far."""
    own = sum(sent for sent, _ in ct.bytes_between_nodes().values())
    devices = coarse.statistics(all_devices=True)["devices"].values()
    by_devices = sum(float(found.get("between_nodes_sent_bytes", 0)) for found in devices)
    by_workers = coarse.push_pull(np.array([float(own)]), name="sent", op=coarse.Sum)
    return float(by_workers[0]) + by_devices


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Minibatches of one mode."""
    model = net(given.layers, given.width)
    nbytes = sum(4 * parameter.numel() for parameter in model.parameters())
    ct.fully_shard(model, units=lambda module: isinstance(module, nn.Sequential) and module is not model, **MODES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock, seconds = WallClock(), []
    for number in range(given.minibatches + 1):
        if number == 1:
            before = sent_bytes()
        coarse.barrier()
        began_s = clock.now_s()
        for _ in range(MICROBATCHES):
            model(torch.randn(2, given.width)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        coarse.barrier()
        seconds.append(clock.now_s() - began_s)
    nodes = current().placement.client_nodes
    num_nodes = len(set(nodes))
    found = (sent_bytes() - before) / given.minibatches / num_nodes
    wanted = wanted_bytes(name, nbytes, num_nodes, len(nodes) // num_nodes)
    ct.release_caches(model)
    return {"mode": name, "sent_bytes": found, "formula_bytes": wanted, "seconds": seconds[1:], "model_bytes": nbytes}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--minibatches", type=int, default=3)
    given = parser.parse_args()
    coarse.init()
    torch.set_num_threads(1)
    rows = [measure(name, given) for name in MODES]
    if coarse.rank() == 0:
        base = median(rows[0]["seconds"])
        for row in rows:
            took = median(row["seconds"])
            print(
                f"{row['mode']:22} {row['sent_bytes'] / 1e6:8.2f} MB, by formula {row['formula_bytes'] / 1e6:8.2f} MB "
                f"({row['sent_bytes'] / row['formula_bytes'] - 1:+.1%})  {took:6.2f} s a minibatch, {base / took:.2f} "
                "times odc  (measured)"
            )
        origin = provenance("odc_wire.py", sys.argv[1:], coarse.size())
        RESULTS.write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n")
    coarse.shutdown()


if __name__ == "__main__":
    main()
