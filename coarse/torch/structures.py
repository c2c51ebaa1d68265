"""Tensors within modules' arguments, results and attributes: in torch's containers, and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import SUPPORTED_NODES, tree_flatten, tree_unflatten

_OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of a module that torch itself keeps."""
_MOST_KEPT = 1000
"""Most elements of a container among a module's attributes that is looked into; longer ones are data."""


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors within a value, in order."""
    for leaf in _leaves(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif _is_opened(leaf):
            for field in fields(leaf):
                yield from tensors_in(getattr(leaf, field.name, None))


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """Return a value with changed tensors.

    It is a copy of each container that has any, and the value itself where none changes.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if _is_opened(value):
        made = value
        for field in fields(value):
            before = getattr(value, field.name, None)
            after = with_tensors(before, change)
            if after is not before:
                made = copy.copy(value) if made is value else made
                object.__setattr__(made, field.name, after)
        return made
    leaves, structure = _leaves(value)
    if len(leaves) == 1 and leaves[0] is value:
        return value
    changed = [with_tensors(leaf, change) for leaf in leaves]
    is_changed = any(after is not before for after, before in zip(changed, leaves, strict=True))
    return tree_unflatten(changed, structure) if is_changed else value


def kept_tensors(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """Yield the tensors that modules keep in their own attributes, also in containers."""
    for module in modules:
        for name, value in list(vars(module).items()):
            if name in _OWN_ATTRIBUTES or isinstance(value, nn.Module):
                continue
            if not isinstance(value, list | tuple | dict) or len(value) <= _MOST_KEPT:
                yield from tensors_in(value)


def _leaves(value: object) -> tuple[list[Any], Any]:
    """Return the leaves of a value's containers, and their structure.

    A dataclass that torch does not know is a leaf.
    """
    return tree_flatten(value, is_leaf=_is_opened)


def _is_opened(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and type(value) not in SUPPORTED_NODES
