"""Placeholder for a gradient that lies with its owner until the minibatch ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from coarse.errors import ConfigError

_ATTRIBUTES = ("shape", "dtype", "device", "layout", "is_sparse", "requires_grad", "ndim")
_LOOKS = frozenset([
    *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES), torch.Tensor.size, torch.Tensor.dim,
    torch.Tensor.numel,
])  # fmt: skip
"""Functions that may be called on it."""
_OF_DTENSORS = frozenset([
    "full_tensor", "to_local", "redistribute", "placements", "device_mesh", "_local_tensor", "_spec",
])  # fmt: skip


class GradientPlaceholder(torch.Tensor):
    """Gradient without values, of its parameter's local shape and type; uses of its values are refused."""

    @staticmethod
    def __new__(cls: type[GradientPlaceholder], parameter: torch.Tensor) -> GradientPlaceholder:
        """Make a placeholder for a sharded parameter's gradient."""
        made: GradientPlaceholder = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device, requires_grad=False
        )
        return made

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # fmt: skip
        """Allow the functions that need no values, and refuse all others."""
        if function in _LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        raise _too_early(_name_of(function))

    @classmethod
    def __torch_dispatch__(cls, function: Callable[..., Any], *_: object) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Refuse every operation; none should come past `__torch_function__`."""
        raise AssertionError(f"{function} of a gradient without values")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Refuse the members of DTensors, which a sharded gradient would be."""
        if name in _OF_DTENSORS:
            raise _too_early(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:  # type: ignore[override]
        """Return a text for people."""
        return "GradientPlaceholder(until coarse.torch.end_minibatch)"


def _name_of(function: Callable[..., Any]) -> str:
    """Return a function's name as a user wrote it; for an attribute's getter, the attribute's name."""
    name = getattr(function, "__name__", str(function))
    attribute = getattr(function, "__self__", None)
    return str(getattr(attribute, "__name__", name) if name in ("__get__", "__set__") else name)


def _too_early(what: str) -> ConfigError:
    return ConfigError(
        f"{what} wants a gradient before its minibatch has ended: in mode 'odc' gradients are whole after "
        "coarse.torch.end_minibatch(model, num_tokens=n); call that before you clip, unscale, log or change gradients"
    )
