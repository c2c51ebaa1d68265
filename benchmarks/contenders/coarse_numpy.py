"""coarse through its numpy interface: with a copy, and with gradients that live in device memory."""

from __future__ import annotations

import numpy as np

import coarse
from benchmarks.workloads import DTYPE, Workload


class CoarseCopy:
    """Gradients in the worker's own memory: a push copies them to the devices, a pull copies the sums back."""

    name = "coarse, copy"
    sums = True

    def __init__(self) -> None:
        self._tensors: list[tuple[str, np.ndarray]] = []

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """Name each tensor; the sums come back into the same memory."""
        views = workload.views(host)
        names = [f"{workload.name}.copy.{name}" for name, _ in workload.tensors]
        self._tensors = list(zip(names, views, strict=True))
        return views

    def run(self) -> None:
        """Start every tensor, then wait for each."""
        handles = [coarse.push_pull_async(view, name, op=coarse.Sum, out=view) for name, view in self._tensors]
        for handle in handles:
            handle.wait()

    def close(self) -> None:
        """Drop the views; the devices keep the names."""
        self._tensors = []


class CoarseDevice:
    """Gradients in device memory: neither push nor pull moves a byte."""

    name = "coarse, device"
    sums = True

    def __init__(self) -> None:
        self._tensors: list[tuple[str, np.ndarray]] = []

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """An array of device memory for each tensor."""
        self._tensors = []
        for name, shape in workload.tensors:
            key = f"{workload.name}.device.{name}"
            self._tensors.append((key, coarse.device_array(key, shape, DTYPE, op=coarse.Sum)))
        return [array for _, array in self._tensors]

    def run(self) -> None:
        """Start every tensor, then wait for each."""
        handles = [coarse.push_pull_async(array, name, op=coarse.Sum) for name, array in self._tensors]
        for handle in handles:
            handle.wait()

    def close(self) -> None:
        """Drop the views; the devices keep the memory."""
        self._tensors = []
