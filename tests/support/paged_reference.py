"""What a model in the network should become: each worker's micro-batch apart, float32 sums, the same kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.fixed_point import adder_of
from coarse.luwu.store.kernels import Kernel, kernel_of

Loss = Callable[[nn.Module, int, int, int], torch.Tensor]
"""Of a model, a worker, a step and a pass."""


Gradients = dict[str, np.ndarray]
"""By name, of those that have any."""
Add = Callable[[list[Gradients]], Gradients] | None


def added_in_order(by_worker: list[Gradients]) -> Gradients:
    """Sums in float32, worker by worker."""
    total: Gradients = {}
    for own in by_worker:
        for name, values in own.items():
            total[name] = values if name not in total else total[name] + values
    return total


def added_as_integers(declaration: Declaration) -> Callable[[list[Gradients]], Gradients]:
    """Sums of integers, as one optimizer node makes them that has all workers' values: chunk by chunk of each unit."""
    model, adder = declaration.model, adder_of(declaration.sum, declaration.num_workers)

    def add(by_worker: list[Gradients]) -> Gradients:
        total: Gradients = {}
        for number, unit in enumerate(model.units):
            own = [gradients for gradients in by_worker if any(one.name in gradients for one in unit.tensors)]
            flats = [np.zeros(unit.num_elements, np.float32) for _ in own]
            for flat, gradients in zip(flats, own, strict=True):
                for begin, one in zip(unit.begins, unit.tensors, strict=True):
                    if one.name in gradients:
                        flat[begin : begin + one.num_elements] = gradients[one.name]
            out = np.zeros(unit.num_elements, np.float32)
            for chunk in range(model.num_chunks(number)) if own else ():
                begin, end = model.elements(number, chunk)
                adder([flat[begin:end] for flat in flats], out[begin:end])
            for begin, one in zip(unit.begins, unit.tensors, strict=True):
                if any(one.name in gradients for gradients in own):
                    total[one.name] = out[begin : begin + one.num_elements].copy()
        return total

    return add


class Reference:
    """Trains a copy of a model as all workers together do."""

    def __init__(
        self,
        model: nn.Module,
        num_workers: int,
        optimizer: str = "AdamW",
        *,
        settings: dict[str, Any] | None = None,
        groups: Callable[[str], dict[str, Any]] | None = None,
        dtype: torch.dtype = torch.float32,
        kernels: Callable[[str, dict[str, Any]], Kernel] = kernel_of,
        add: Add = None,
    ) -> None:
        """`add` combines the workers' gradients of a pass; by default in their order, in float32."""
        self._add = add or added_in_order
        self.model = copy.deepcopy(model)
        self.num_workers = num_workers
        self.dtype = dtype
        self._kernels = {
            name: kernels(optimizer, {**(settings or {}), **(groups(name) if groups else {})})
            for name, _ in self.model.named_parameters()
        }
        self.masters = {
            name: parameter.detach().to(torch.float32).numpy().reshape(-1).copy()
            for name, parameter in self.model.named_parameters()
        }
        self.states = {
            name: [np.zeros_like(master) for _ in range(self._kernels[name].num_states)]
            for name, master in self.masters.items()
        }
        self.steps = dict.fromkeys(self.masters, 0)
        self.last_norm = 0.0
        self._show()

    def _show(self) -> None:
        """Put the master copies into the model, in the type that workers compute in."""
        for name, parameter in self.model.named_parameters():
            parameter.data = torch.from_numpy(self.masters[name].copy()).to(self.dtype).reshape(parameter.shape)

    def gradients(self, loss: Loss, step: int, num_passes: int) -> dict[str, np.ndarray]:
        """Sums by pass, and within a pass by worker; of parameters that have any gradient."""
        total: dict[str, np.ndarray] = {}
        for number in range(num_passes):
            by_worker = []
            for worker in range(self.num_workers):
                self.model.zero_grad()
                loss(self.model, worker, step, number).backward()
                by_worker.append({
                    name: parameter.grad.to(torch.float32).numpy().reshape(-1).copy()
                    for name, parameter in self.model.named_parameters()
                    if parameter.grad is not None
                })  # fmt: skip
            for name, values in self._add(by_worker).items():
                total[name] = values if name not in total else total[name] + values
        return total

    def step(self, loss: Loss, step: int, *, num_passes: int = 1, max_norm: float | None = None) -> float:
        """One step; by what gradients were multiplied."""
        total = self.gradients(loss, step, num_passes)
        coefficient = 1.0
        if max_norm is not None:
            square = sum(float(np.sum(values.astype(np.float64) ** 2)) for values in total.values())
            self.last_norm = square**0.5 / self.num_workers
            coefficient = min(1.0, max_norm / (self.last_norm + 1e-6))
        for name, values in total.items():
            gradient = values / np.float32(self.num_workers) if self.num_workers > 1 else values
            if coefficient != 1.0:
                gradient = gradient * np.float32(coefficient)
            self.steps[name] += 1
            self._kernels[name].step(self.masters[name], gradient, self.states[name], self.steps[name])
        self._show()
        return coefficient

    def differing(self, state_dict: dict[str, torch.Tensor], names: Sequence[str] | None = None) -> list[str]:
        """Parameters that a state dict has with other bits."""
        return [
            name
            for name, master in self.masters.items()
            if (names is None or name in names)
            and state_dict[name].to(torch.float32).numpy().reshape(-1).tobytes() != master.tobytes()
        ]
