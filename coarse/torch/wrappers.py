"""Wrappers of modules: torch.compile's, whose inner module is in a graph, and DistributedDataParallel.

[Note: compiled modules] Hooks of a module that runs within a compiled graph break the graph at that place, or take the
parameters while it was compiled for others. So the wrapper is hooked, and stands for all that it was compiled from.
"""

import sys
from collections.abc import Iterator

from torch import nn

from coarse.errors import ConfigError


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is the result of `torch.compile`; `Module.compile` changes none."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # imported by the first torch.compile, and slow to import
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def compiled_from(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` was given; itself where it was given none."""
    inner = module._orig_mod if is_compiled(module) else module
    assert isinstance(inner, nn.Module)
    return inner


def is_compiled_in_place(module: nn.Module) -> bool:
    """Return whether `Module.compile` was called, after which a module's hooks run within its graph."""
    return getattr(module, "_compiled_call_impl", None) is not None


def modules_hooked(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model with their names, without those within compiled ones.

    [Note: compiled modules] has the reason. A module that stands at several places comes once.
    """
    yield from _hooked(name, model, set())


def _hooked(name: str, module: nn.Module, known: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in known:
        return
    known.add(id(module))
    yield name, module
    for child_name, child in () if is_compiled(module) else module.named_children():
        yield from _hooked(f"{name}.{child_name}" if name else child_name, child, known)


def require_no_ddp(model: nn.Module) -> None:
    """Raise ConfigError where a model, or a part of it, is wrapped in DistributedDataParallel."""
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            place = f"{name!r} of this {type(model).__name__}" if name else "this model"
            raise ConfigError(
                f"{place} is wrapped in DistributedDataParallel, which keeps all parameters on every worker and sums "
                "gradients by itself; give its .module instead",
                key="model",
            )
