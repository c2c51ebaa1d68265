"""Count of the activations that autograd saves for backward.

[Note: saved for backward, live] A tensor is seen when it is saved, while the root module's forward runs; it counts
until its memory is freed, which is when backward has used it. A loss computed outside of the model is counted within
`saved_tensors_counted`. A checkpointed tensor is not saved, so it doesn't count; while backward computes it again, it
does.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from coarse.parallel.sharded.memory_ledger import MemoryKind
from coarse.torch.fsdp.account import DeviceAccount

Packing = tuple[Callable[[torch.Tensor], object], Callable[[Any], torch.Tensor]]
"""Functions that pack a tensor that autograd saves, and unpack it."""


@contextmanager
def saved_tensors_counted(account: DeviceAccount) -> Iterator[None]:
    """Count tensors that autograd saves within the context as activations until they are freed."""
    with _counting(account, (_packed, _unpacked)):
        yield


class ActivationWatch:
    """Count of tensors saved in a model's forward, and in those parts of it that backward repeats."""

    def __init__(self, model: nn.Module, account: DeviceAccount) -> None:
        self._account = account
        self._forward: list[AbstractContextManager[None]] = []
        self._repeated: list[AbstractContextManager[None] | None] = []
        self._handles = [
            model.register_forward_pre_hook(self._enter_forward, prepend=True),
            model.register_forward_hook(self._leave_forward, always_call=True),
        ]
        for module in model.modules():
            self._handles.append(module.register_forward_pre_hook(self._enter_module))
            self._handles.append(module.register_forward_hook(self._leave_module, always_call=True))

    def close(self) -> None:
        """Count no more."""
        for handle in self._handles:
            handle.remove()

    def _enter_forward(self, _module: nn.Module, _args: object) -> None:
        counting = saved_tensors_counted(self._account)
        counting.__enter__()
        self._forward.append(counting)

    def _leave_forward(self, _module: nn.Module, _args: object, _output: object) -> None:
        if self._forward:  # empty where an earlier hook of the same call failed
            self._forward.pop().__exit__(None, None, None)

    def _enter_module(self, _module: nn.Module, _args: object) -> None:
        """Count while backward repeats a checkpointed part, beside the hooks that take the saved tensors."""
        if not _is_backward():
            return
        packing = None if self._repeated else _packing_in_use()
        counting = None if packing is None else _counting(self._account, packing)
        if counting is not None:
            counting.__enter__()
        self._repeated.append(counting)

    def _leave_module(self, _module: nn.Module, _args: object, _output: object) -> None:
        if _is_backward() and self._repeated:
            counting = self._repeated.pop()
            if counting is not None:
                counting.__exit__(None, None, None)


def _counting(account: DeviceAccount, packing: Packing) -> AbstractContextManager[None]:
    """Return hooks that count a saved tensor and call the other ones.

    Autograd calls the innermost hooks alone.
    """
    pack, unpack = packing

    def counted(tensor: torch.Tensor) -> object:
        return pack(account.note(tensor, MemoryKind.ACTIVATIONS))

    return saved_tensors_hooks(counted, unpack)


def _packed(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a detached tensor, with the version that it was saved in.

    A graph that holds its own outputs is never freed.
    """
    return tensor.detach(), tensor._version


def _unpacked(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Return the tensor.

    Raises:
        RuntimeError: it was changed in place since, for which autograd doesn't look where hooks are.
    """
    tensor, version = packed
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} that backward needs was modified by an inplace operation: it is "
            f"at version {tensor._version}, and was saved at version {version}; change a copy instead"
        )
    return tensor


def _is_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _packing_in_use() -> Packing:
    """Return the innermost hooks for saved tensors, or autograd's own way where there are none."""
    innermost: Packing | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return innermost or (_packed, _unpacked)
