"""Parameters with values elsewhere: they stand in modules for the real ones, and refuse to be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from coarse.errors import NotKeptError

_DETACH = torch.ops.aten.detach.default
_COPY = torch.ops.aten.copy_.default


class Released(torch.Tensor):
    """Parameter without values, of the shape and type that it has while its module computes."""

    parameter_name: str
    is_pushed: Callable[[], bool]
    """Function that returns whether gradients of it lie on an optimizer node."""
    accept: Callable[[torch.Tensor], bool]
    """Function that takes values which are copied into it while a state dict is loaded; False at other times."""

    @staticmethod
    def __new__(
        cls: type[Released],
        name: str,
        like: torch.Tensor,
        dtype: torch.dtype,
        is_pushed: Callable[[], bool],
        accept: Callable[[torch.Tensor], bool],
    ) -> Released:
        """Make a placeholder for the parameter `like`."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        made.parameter_name, made.is_pushed, made.accept = name, is_pushed, accept
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Refuse all operations but those that need no values."""
        if func is _DETACH:
            one = args[0]
            return cls(one.parameter_name, one, one.dtype, one.is_pushed, one.accept)
        if func is _COPY and isinstance(args[0], cls) and args[0].accept(args[1]):
            return args[0]
        name = next(one.parameter_name for one in _flat(args, kwargs) if isinstance(one, cls))
        raise NotKeptError(
            f"{name!r} is used by {func.name().removeprefix('aten::')} while its values are on an optimizer node; use "
            "it in its module's forward, within optimizer.summoned(), or by state_dict() and load_state_dict(). Where "
            "another module uses it, pass units= so that one unit has both"
        )

    @property
    def grad(self) -> torch.Tensor | None:
        """None; NotKeptError where there are gradients, which are on an optimizer node."""
        if self.is_pushed():
            raise NotKeptError(
                f"the gradient of {self.parameter_name!r} is on an optimizer node; call optimizer.zero_grad() to "
                "discard it, optimizer.clip_grad_norm() to clip it, and no GradScaler"
            )
        return None

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None:
            raise NotKeptError(
                f"the gradient of {self.parameter_name!r} is kept on an optimizer node; let backward make it"
            )

    @property
    def data(self) -> torch.Tensor:
        """The placeholder detached; it has no values."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise NotKeptError(
            f"the values of {self.parameter_name!r} are kept on an optimizer node; write them within "
            "optimizer.summoned(write=True)"
        )

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401
        """Refuse to be saved, as there are no values."""
        raise NotKeptError(
            f"{self.parameter_name!r} cannot be saved, for its values are on an optimizer node; save state_dict(), or "
            "call optimizer.save()"
        )

    def __deepcopy__(self, memo: object) -> Released:
        """Refuse to be copied, as there are no values."""
        raise NotKeptError(f"{self.parameter_name!r} cannot be copied, for its values are on an optimizer node")

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"Released({self.parameter_name!r}, {tuple(self.shape)}, {self.dtype})"


def placeholder_parameter(
    name: str,
    parameter: nn.Parameter,
    dtype: torch.dtype,
    is_pushed: Callable[[], bool],
    accept: Callable[[torch.Tensor], bool],
) -> nn.Parameter:
    """Return the placeholder of `parameter` for its module, and for the optimizer's groups."""
    return nn.Parameter(Released(name, parameter, dtype, is_pushed, accept), requires_grad=parameter.requires_grad)


def _flat(args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[Any]:
    found: list[Any] = []
    for one in (*args, *(kwargs or {}).values()):
        found += one if isinstance(one, list | tuple) else [one]
    return found
