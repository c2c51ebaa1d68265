# Pure: no MPI, threads, clock or environment.
"""The bandwidth between every pair of GPUs, an outcome of a machine's links (COARSE III-E, figure 8)."""

import numpy as np

from coarse.hardware.fabric import Fabric
from coarse.hardware.machine import Machine
from coarse.hardware.wiring import PathKind


def pair_s(machine: Machine, source: str, target: str, nbytes: int, *, bidirectional: bool, kind: PathKind) -> float:
    """Seconds until a pair has moved `nbytes`, or `nbytes` each way, with nothing else on the links."""
    fabric = Fabric(machine.links)
    fabric.start(0, machine.path(source, target, kind=kind), nbytes, 0.0)
    if bidirectional:
        fabric.start(1, machine.path(target, source, kind=kind), nbytes, 0.0)
    ended_s = 0.0
    while (due_s := fabric.next_s()) is not None:
        for finish_s, _ in fabric.advance(due_s):
            ended_s = max(ended_s, finish_s)
    return ended_s


def bandwidth_matrix(
    machine: Machine, nbytes: int, *, bidirectional: bool, kind: PathKind = "pcie"
) -> np.ndarray:  # (g, g) float64 bytes/s, 0 on the diagonal; g GPUs
    """Bytes per second, latency included, from each GPU to each other; both ways together if `bidirectional`."""
    bandwidth = np.zeros((len(machine.gpus), len(machine.gpus)))
    for row, source in enumerate(machine.gpus):
        for column, target in enumerate(machine.gpus):
            if row < column or (row > column and not bidirectional):
                seconds = pair_s(machine, source, target, nbytes, bidirectional=bidirectional, kind=kind)
                bandwidth[row, column] = nbytes * (2 if bidirectional else 1) / seconds
    return bandwidth + bandwidth.T if bidirectional else bandwidth
