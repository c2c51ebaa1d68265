"""Optimizers made before a model was sharded, which step parameters that it no longer has."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

_replaced = WeakTensorKeyDictionary()
"""Parameter that sharding has replaced -> its name."""
_seen: WeakSet[torch.optim.Optimizer] = WeakSet()


@contextmanager
def noting_replaced(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Remember the parameters that modules lose within the context; optimizers that step them warn."""
    _watch_steps()
    _seen.clear()
    before = [(name, parameter) for module in modules for name, parameter in module.named_parameters()]
    yield
    after = {id(parameter) for module in modules for parameter in module.parameters()}
    for name, parameter in before:
        if id(parameter) not in after:
            _replaced[parameter] = name


@cache
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_warn_of_replaced)


def _warn_of_replaced(optimizer: torch.optim.Optimizer, _args: object, _options: object) -> None:
    """Warn once of an optimizer with parameters that are not computed with any more."""
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = [_replaced[p] for p in parameters if p in _replaced and p.grad is None]
    if names:
        warnings.warn(
            f"this {type(optimizer).__name__} was made before fully_shard, which has put other parameters in the place "
            f"of {len(names)} of its {len(parameters)}, such as {names[0]!r}: stepping it leaves the model as it is; "
            "make the optimizer after fully_shard",
            stacklevel=4,
        )
