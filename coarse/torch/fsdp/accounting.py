"""Count of a sharded model's memory: shards, gathered parameters, gradients, states, activations.

Activations are those saved for backward, states the optimizer's. It works on any model that FSDP2 has sharded, by the
hooks of modules, parameters, optimizers and autograd. A tensor that a hook sees is counted by storage until that is
freed (account.py, [Note: counted by storage]), so nothing needs to be told when memory is given back. The buffers of
collectives are taken from the account by those who allocate them.
"""

import weakref
from functools import cache

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from coarse.parallel.sharded.memory_ledger import MemoryKind
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.activations import ActivationWatch


def watch_memory(model: nn.Module, account: DeviceAccount, *, is_offloaded: bool = False) -> "MemoryWatch":
    """Count the memory of a sharded model, from its first forward until the watch is closed.

    With `is_offloaded` (FSDP2's CPUOffloadPolicy) shards, their gradients and the optimizer's states are in the host's
    memory and don't count.
    """
    return MemoryWatch(model, account, is_offloaded=is_offloaded)


class MemoryWatch:
    """Hooks that count one model's memory."""

    def __init__(self, model: nn.Module, account: DeviceAccount, *, is_offloaded: bool) -> None:
        self._account = account
        self._is_offloaded = is_offloaded
        self._activations = ActivationWatch(model, account)
        self._handles: list[RemovableHandle] = [model.register_forward_pre_hook(self._before_forward, prepend=True)]
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self._handles.append(module.register_forward_pre_hook(self._on_unsharded))
        _watches.add(self)
        _hook_all_optimizers()
        self._count_states(model)

    def close(self) -> None:
        """Count nothing more that is new; counted storages stay so until they are freed."""
        self._activations.close()
        _watches.discard(self)
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, model: nn.Module, _args: object) -> None:
        self._count_states(model)

    def _count_states(self, model: nn.Module) -> None:
        """Count shards, and tensors that aren't sharded.

        It is called again before each forward, since they may be replaced.
        """
        for buffer in model.buffers():
            self._note(buffer, MemoryKind.BUFFERS)
        for parameter in model.parameters():
            if not (self._is_offloaded and isinstance(parameter, DTensor)):
                self._note(parameter, MemoryKind.SHARDS)
                self._watch_gradient(parameter)

    def _note(self, tensor: torch.Tensor, kind: MemoryKind) -> None:
        if not tensor.is_meta:
            self._account.note(_local(tensor), kind)

    def _on_unsharded(self, unit: nn.Module, _args: object) -> None:
        """Count a unit's parameters, which FSDP2 has just filled.

        FSDP2 frees and fills the same storages later on.
        """
        for parameter in unit.parameters():
            if not isinstance(parameter, DTensor):
                self._note(parameter, MemoryKind.GATHERED)
                self._watch_gradient(parameter)

    def _watch_gradient(self, parameter: nn.Parameter) -> None:
        """Watch a parameter's gradient, once.

        A weak reference would tell too, but `nn.Module.to_empty` refuses parameters that have one.
        """
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        if parameter.requires_grad and self._on_gradient not in hooks.values():
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._account.hold(_local(parameter.grad), MemoryKind.GRADIENTS)

    def on_step(self, optimizer: Optimizer) -> None:
        """Count an optimizer's states of parameters that count; numbers alone, such as a step count, don't."""
        if self._is_offloaded:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not self._account.counts(_local(parameter)):
                    continue
                for state in optimizer.state.get(parameter, {}).values():
                    if isinstance(state, torch.Tensor) and state.ndim > 0:
                        self._note(state, MemoryKind.OPTIMIZER_STATES)


_watches: weakref.WeakSet[MemoryWatch] = weakref.WeakSet()
"""Watches that count now."""


@cache
def _hook_all_optimizers() -> None:
    """Tell the watches of every step, by one hook for good.

    Torch iterates over its hooks during a step, in which the garbage collector may end a watch, and must not remove
    one.
    """
    register_optimizer_step_post_hook(_on_any_step)


def _on_any_step(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    for watch in list(_watches):
        watch.on_step(optimizer)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that is sharded."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
