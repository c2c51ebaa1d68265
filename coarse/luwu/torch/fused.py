"""Torch's fused CPU kernels in place of numpy's: faster; their bits depend on processor and version.

A chunk begins at a multiple of 64 elements of its tensor, so that these kernels' bits, too, are the same for any
chunking. The processor and the version stand in the manifest (`identity`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coarse.luwu.store import kernels


def identity() -> str:
    """Return the identity of all that these kernels' bits depend on."""
    return f"torch-fused {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def kernel_of(optimizer: str, settings: Mapping[str, Any]) -> kernels.Kernel:
    """Return a kernel, as the function of this name in coarse/luwu/store/kernels.py does."""
    plain = kernels.kernel_of(optimizer, settings)
    if isinstance(plain, kernels.Sgd):
        return _Sgd(plain)
    assert isinstance(plain, kernels.Adam)
    return _Adam(plain)


@dataclass(frozen=True)
class _Adam:
    plain: kernels.Adam

    @property
    def num_states(self) -> int:
        """Number of states of the kernel."""
        return self.plain.num_states

    def step(self, parameters: np.ndarray, gradients: np.ndarray, states: Sequence[np.ndarray], step: int) -> None:
        """Update a chunk by torch's fused step of Adam or AdamW."""
        plain = self.plain
        mean, square = (torch.from_numpy(state) for state in states)
        fused = torch._fused_adamw_ if plain.is_decoupled else torch._fused_adam_
        fused(
            [torch.from_numpy(parameters)], [torch.from_numpy(gradients)], [mean], [square], [],
            [torch.tensor(float(step), device="cpu")], lr=plain.lr, beta1=plain.beta1, beta2=plain.beta2,
            weight_decay=plain.weight_decay, eps=plain.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


@dataclass(frozen=True)
class _Sgd:
    plain: kernels.Sgd

    @property
    def num_states(self) -> int:
        """Number of states of the kernel."""
        return self.plain.num_states

    def step(self, parameters: np.ndarray, gradients: np.ndarray, states: Sequence[np.ndarray], step: int) -> None:
        """Update a chunk by torch's fused step of SGD."""
        plain = self.plain
        torch._fused_sgd_(
            [torch.from_numpy(parameters)], [torch.from_numpy(gradients)],
            [torch.from_numpy(state) for state in states], weight_decay=plain.weight_decay, momentum=plain.momentum,
            lr=plain.lr, dampening=plain.dampening, nesterov=plain.nesterov, maximize=False, is_first_step=step == 1,
        )  # fmt: skip
