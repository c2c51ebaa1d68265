"""coarse through its numpy interface: with a copy, and with gradients that live in device memory.

Tensors are fused into buckets by the same rule as in coarse's DistributedOptimizer, as DDP's are for
the peers.
"""

from __future__ import annotations

import math

import numpy as np

import coarse
from benchmarks.workloads import DTYPE, Workload
from coarse.protocol.layout import bucket_limit_bytes, fuse


def fused_slices(workload: Workload) -> list[slice]:
    """The elements (of all tensors end to end) that are pushed under one name."""
    if workload.is_apart:
        return workload.buckets
    entries = [(name, math.prod(shape) * DTYPE.itemsize) for name, shape in workload.tensors]
    limit = bucket_limit_bytes(workload.nbytes, coarse.Config().bucket_bytes)
    sizes = dict(entries)
    slices, start = [], 0
    for names in fuse(entries, bucket_bytes=limit):
        numel = sum(sizes[name] for name in names) // DTYPE.itemsize
        slices.append(slice(start, start + numel))
        start += numel
    return slices


class CoarseCopy:
    """Gradients in the worker's own memory: a push copies them to the devices, a pull copies the sums back."""

    name = "coarse, copy"
    sums = True

    def __init__(self) -> None:
        self._buckets: list[tuple[str, np.ndarray]] = []
        self._group = ""
        """The name of the one call for all buckets, where they come in one."""

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """Name each bucket; the sums come back into the same memory."""
        self._buckets = [
            (f"{workload.name}.copy.{i}", host[part]) for i, part in enumerate(fused_slices(workload))
        ]
        self._group = f"{workload.name}.group" if workload.is_grouped else ""
        return workload.views(host)

    def run(self) -> None:
        """Start every bucket, then wait for each; a group's results are copied to where its tensors are."""
        if self._group:
            flats = [flat for _, flat in self._buckets]
            for flat, result in zip(flats, coarse.grouped_push_pull(flats, self._group, op=coarse.Sum), strict=True):
                flat[:] = result
            return
        handles = [coarse.push_pull_async(flat, name, op=coarse.Sum, out=flat) for name, flat in self._buckets]
        for handle in handles:
            handle.wait()

    def close(self) -> None:
        """Drop the views; the devices keep the names."""
        self._buckets = []


class CoarseDevice:
    """Gradients in device memory: neither push nor pull moves a byte."""

    name = "coarse, device"
    sums = True

    def __init__(self) -> None:
        self._buckets: list[tuple[str, np.ndarray]] = []

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """An array of device memory for each bucket, and its tensors as views of it."""
        tensors: list[np.ndarray] = []
        shapes = iter(workload.tensors)
        self._buckets = []
        for i, part in enumerate(fused_slices(workload)):
            name = f"{workload.name}.device.{i}"
            flat = coarse.device_array(name, (part.stop - part.start,), DTYPE, op=coarse.Sum)
            self._buckets.append((name, flat))
            start = 0
            while start < flat.size:
                _, shape = next(shapes)
                tensors.append(flat[start : start + math.prod(shape)].reshape(shape))
                start += math.prod(shape)
        return tensors

    def run(self) -> None:
        """Start every bucket, then wait for each."""
        handles = [coarse.push_pull_async(flat, name, op=coarse.Sum) for name, flat in self._buckets]
        for handle in handles:
            handle.wait()

    def close(self) -> None:
        """Drop the views; the devices keep the memory."""
        self._buckets = []
