"""What a model in the network should become: each worker's micro-batch apart, float32 sums, the same kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from coarse.storage.paged.kernels import Kernel, kernel_of

Loss = Callable[[nn.Module, int, int, int], torch.Tensor]
"""Of a model, a worker, a step and a pass."""


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
    ) -> None:
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
            of_pass: dict[str, np.ndarray] = {}
            for worker in range(self.num_workers):
                self.model.zero_grad()
                loss(self.model, worker, step, number).backward()
                for name, parameter in self.model.named_parameters():
                    if parameter.grad is None:
                        continue
                    own = parameter.grad.to(torch.float32).numpy().reshape(-1).copy()
                    of_pass[name] = own if name not in of_pass else of_pass[name] + own
            for name, values in of_pass.items():
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
