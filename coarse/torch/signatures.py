"""Names and formats of tensors, which all ranks must agree on."""

from collections.abc import Iterable, Mapping
from typing import cast

import torch

from coarse.torch.tensors import is_dense

NamedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""A `state_dict()` or `named_parameters()`."""


def signature(tensor: torch.Tensor) -> str:
    """What all ranks must agree on about a tensor, for people: `float32[3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def names_of(named_parameters: NamedTensors) -> dict[torch.Tensor, str]:
    """Each parameter's name, in order; a tied one has its first."""
    is_mapping = isinstance(named_parameters, Mapping)
    pairs = list(named_parameters.items() if is_mapping else named_parameters)  # type: ignore[union-attr]
    seen: set[str] = set()
    names: dict[torch.Tensor, str] = {}
    for name, parameter in cast(list[tuple[str, torch.Tensor]], pairs):
        if name in seen:
            raise ValueError(f"the name {name!r} comes twice in named_parameters; names must differ")
        seen.add(name)
        names.setdefault(parameter, name)
    return names


def format_of(parameter: torch.Tensor) -> str:
    """What all ranks must agree on: type, shape, and the order of elements in memory."""
    if parameter.is_contiguous() or not is_dense(parameter):
        return signature(parameter)
    return f"{signature(parameter)} with strides {list(parameter.stride())}"
