# Pure: no MPI, threads, clock or environment.
"""One optimizer step of a chunk of parameters, in numpy: the same bits for any chunking, on any host.

Every operation is one of IEEE's own (add, multiply, divide, square root), correctly rounded to float32, in the order
that is written here; none is fused with another. torch.optim fuses some, and its square root is not always the nearest
number, so that its bits depend on the processor: after one step, an element of these kernels differs from torch's by at
most `TORCH_BOUND` of the largest number that is added on its way (which is more than the step where those cancel).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np

TORCH_BOUND: Final = 2e-6
_REFUSED: Final = ("amsgrad", "maximize", "differentiable", "capturable")
"""Settings of torch.optim that change a step's result, and that no kernel has; off is fine."""
_IGNORED: Final = frozenset({"foreach", "fused", "initial_lr", "params", "swap_lr", "max_lr", "min_lr"})
"""Settings that only say in which way a step is computed, or are a scheduler's."""
_BLOCK: Final = 16_384
"""Elements that are worked on at once: with their scratch they stay in a core's cache."""


class Kernel(Protocol):
    """Optimizer step with its settings."""

    @property
    def num_states(self) -> int:
        """Number of arrays of state, float32 and of the parameters' length, zeros at first."""
        ...

    def step(self, parameters: np.ndarray, gradients: np.ndarray, states: Sequence[np.ndarray], step: int) -> None:
        """Update a chunk.

        Args:
            parameters: (n,) float32, overwritten.
            gradients: (n,) float32, not written to.
            states: `num_states` of (n,) float32, overwritten.
            step: 1 for the first step of these parameters.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba), or AdamW (Loshchilov and Hutter) if the decay is decoupled, as in torch.optim."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    is_decoupled: bool = False

    num_states: ClassVar[int] = 2
    """Number of states: the averages of gradients, and of their squares."""

    def __post_init__(self) -> None:
        _require_at_least_zero(self, "lr", "eps", "weight_decay")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")

    def step(self, parameters: np.ndarray, gradients: np.ndarray, states: Sequence[np.ndarray], step: int) -> None:
        """Update a chunk by a step of Adam or AdamW."""
        means, squares = states
        kept = np.float32(1.0 - self.lr * self.weight_decay)
        new_mean, beta2, new_square = np.float32(1.0 - self.beta1), np.float32(self.beta2), np.float32(1.0 - self.beta2)
        root_of_correction = np.float32((1.0 - self.beta2**step) ** 0.5)
        step_size = np.float32(-self.lr / (1.0 - self.beta1**step))
        decay, eps = np.float32(self.weight_decay), np.float32(self.eps)
        for block, gradient, (scratch, more) in _blocks(parameters, gradients, 2):
            value, mean, square = parameters[block], means[block], squares[block]
            if self.weight_decay and self.is_decoupled:
                value *= kept
            elif self.weight_decay:
                np.multiply(value, decay, out=more)
                gradient = np.add(gradient, more, out=more)
            np.subtract(gradient, mean, out=scratch)
            scratch *= new_mean
            mean += scratch
            np.multiply(gradient, new_square, out=scratch)
            scratch *= gradient
            square *= beta2
            square += scratch
            np.sqrt(square, out=scratch)
            scratch /= root_of_correction
            scratch += eps
            np.multiply(mean, step_size, out=more)
            more /= scratch
            value += more


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with momentum, as torch.optim.SGD."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require_at_least_zero(self, "lr", "momentum", "weight_decay")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs a momentum and no dampening")

    @property
    def num_states(self) -> int:
        """Number of states: 1 for a momentum, else 0."""
        return 1 if self.momentum else 0

    def step(self, parameters: np.ndarray, gradients: np.ndarray, states: Sequence[np.ndarray], step: int) -> None:
        """Update a chunk by a step of SGD."""
        step_size, decay = np.float32(-self.lr), np.float32(self.weight_decay)
        momentum, new = np.float32(self.momentum), np.float32(1.0 - self.dampening)
        for block, gradient, (scratch, more) in _blocks(parameters, gradients, 2):
            value = parameters[block]
            if self.weight_decay:
                np.multiply(value, decay, out=more)
                gradient = np.add(gradient, more, out=more)
            if self.momentum:
                velocity = states[0][block]
                if step == 1:
                    velocity[:] = gradient
                else:
                    np.multiply(gradient, new, out=scratch)
                    velocity *= momentum
                    velocity += scratch
                if self.nesterov:
                    np.multiply(velocity, momentum, out=scratch)
                    gradient = np.add(gradient, scratch, out=scratch)
                else:
                    gradient = velocity
            np.multiply(gradient, step_size, out=scratch)
            value += scratch


def kernel_of(optimizer: str, settings: Mapping[str, Any]) -> Kernel:
    """Return the kernel of one of torch.optim's optimizers with the settings of a parameter group.

    Raises:
        ValueError: an optimizer or a setting that there is no kernel for, or one out of range.
    """
    given = dict(settings)
    refused = [name for name in _REFUSED if given.pop(name, None)]
    taken: dict[str, Any] = {}
    if optimizer in ("Adam", "AdamW"):
        taken["beta1"], taken["beta2"] = given.pop("betas", (Adam.beta1, Adam.beta2))
        taken |= {name: given.pop(name) for name in ("lr", "eps", "weight_decay") if name in given}
        taken["is_decoupled"] = bool(given.pop("decoupled_weight_decay", False)) or optimizer == "AdamW"
    elif optimizer == "SGD":
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
        taken |= {name: given.pop(name) for name in names if name in given}
    else:
        raise ValueError(f"optimizers out of core are Adam, AdamW and SGD, got {optimizer}")
    if refused or (unknown := sorted(given.keys() - _IGNORED)):
        name = refused[0] if refused else unknown[0]
        raise ValueError(f"{optimizer} out of core has no {name}={settings[name]!r}; leave it out")
    return Adam(**taken) if optimizer != "SGD" else Sgd(**taken)


def _blocks(
    parameters: np.ndarray, gradients: np.ndarray, num_scratch: int
) -> Iterator[tuple[slice, np.ndarray, list[np.ndarray]]]:
    """Yield each block of a chunk: its slice, its gradients, and arrays of its length to work in."""
    scratch = np.empty((num_scratch, min(_BLOCK, len(parameters))), np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        for begin in range(0, len(parameters), _BLOCK):
            end = min(begin + _BLOCK, len(parameters))
            yield slice(begin, end), gradients[begin:end], [one[: end - begin] for one in scratch]


def _require_at_least_zero(settings: object, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {getattr(settings, name)}")
