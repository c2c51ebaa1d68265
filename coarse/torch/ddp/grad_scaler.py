"""Cooperation of torch's GradScaler with a DistributedOptimizer.

[Note: a scaler looks at gradients] GradScaler unscales gradients, and looks for infinities in them, before the
optimizer steps. They have to be those of all ranks by then. It finds them through the optimizer's `param_groups`, which
others read too, on one rank alone and at any time, so that reading those cannot be the call that synchronises. So the
method of GradScaler that looks asks the optimizer first, from when the first DistributedOptimizer is made; so does that
of each kind of GradScaler that has its own, such as FSDP's, which is imported only where it is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Protocol, runtime_checkable

import torch
from torch.amp.grad_scaler import GradScaler

HANDED = frozenset({"grad_scale", "found_inf"})
"""Attributes by which GradScaler tells an optimizer to unscale gradients itself."""


@runtime_checkable
class Synchronising(Protocol):
    """Optimizer whose gradients must be synchronised before they are looked at."""

    def synchronize_for_scaler(self) -> None:
        """Return once `.grad` holds the gradients of all ranks."""
        ...


@cache
def teach_scalers() -> None:
    """Have every GradScaler of this process ask, of any kind; see [Note: a scaler looks at gradients]."""
    kinds = [GradScaler]
    for kind in kinds:
        _teach(kind)
        kinds += kind.__subclasses__()
    GradScaler.__init_subclass__ = classmethod(_teach)  # type: ignore[assignment]


def _teach(kind: type[GradScaler], /, **_options: object) -> None:
    if "_unscale_grads_" in vars(kind):
        kind._unscale_grads_ = _asking(kind._unscale_grads_)  # type: ignore[method-assign]


def _asking(unscale: Any) -> Any:  # noqa: ANN401
    @wraps(unscale)
    def asked(scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if isinstance(optimizer, Synchronising):
            optimizer.synchronize_for_scaler()
        return unscale(scaler, optimizer, *args, **options)

    return asked


@contextmanager
def handing_on(outer: torch.optim.Optimizer, inner: torch.optim.Optimizer) -> Iterator[None]:
    """Pass GradScaler's attributes from an optimizer to the one it wraps, within the context.

    GradScaler sets them on an optimizer that unscales gradients itself (a fused one).
    """
    handed = {name: outer.__dict__[name] for name in HANDED if name in outer.__dict__}
    for name, value in handed.items():
        setattr(inner, name, value)
    try:
        yield
    finally:
        for name in handed:
            delattr(inner, name)
