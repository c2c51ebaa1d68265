"""Loads and stores of tensors that live in device memory, counted as torch's operations touch them.

[Note: touches] A tensor counts as streamed once by each operation that uses it: loaded where it is read, stored where
the operation's schema says that it is written. A view costs nothing. An operation that picks some elements of its
operand (embedding, gather) loads as many bytes as it returns. Caches are not modelled: a processor whose cache holds a
tensor between two operations loads it once less.
"""

import time
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coarse.client.client import Client
from coarse.client.link import DeviceLink

_PICKING = frozenset({
    "aten::embedding", "aten::gather", "aten::index", "aten::index_select", "aten::take", "aten::_embedding_bag",
})  # fmt: skip
"""Operations that read some elements of their first operand."""
_ONLY_WRITING = frozenset({"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_"})
"""Operations that read nothing of the operand that they write."""
_watched: WeakSet[DeviceLink] = WeakSet()


def watch_touches(client: Client) -> None:
    """Tell an emulated job of this worker's loads and stores of state arrays; do nothing in a live one."""
    link = client.link
    if link.touch is None or link in _watched:
        return
    _watched.add(link)
    _Touches(client).__enter__()  # until the process ends


class _Touches(TorchDispatchMode):
    """Mode of torch that counts touches; see [Note: touches]."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._states = client.states
        assert client.link.touch is not None
        self._touch = client.link.touch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        began_s = time.thread_time()
        schema = func._schema
        if not _is_view(schema):
            loaded, stored = self._of(schema, args, result)
            if loaded or stored:
                self._touch(loaded, stored, time.thread_time() - began_s)
        return result

    def _of(self, schema: Any, args: Any, result: object) -> tuple[int, int]:  # noqa: ANN401
        """Return the bytes that an operation has loaded and stored."""
        loaded = stored = 0
        for number, (declared, given) in enumerate(zip(schema.arguments, args, strict=False)):
            is_written = declared.alias_info is not None and declared.alias_info.is_write
            for tensor in _tensors_in(given):
                if self._states.at(tensor.untyped_storage().data_ptr()) is None:
                    continue
                if is_written:
                    stored += tensor.nbytes
                if number == 0 and schema.name in _PICKING and isinstance(result, torch.Tensor):
                    loaded += min(tensor.nbytes, result.nbytes)
                elif not (is_written and schema.name in _ONLY_WRITING):
                    loaded += tensor.nbytes
        return loaded, stored


def _is_view(schema: Any) -> bool:  # noqa: ANN401
    """Return whether an operation gives another view of an operand, and writes nothing."""
    infos = [each.alias_info for each in schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _tensors_in(given: object) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        if given.device.type == "cpu" and given.layout is torch.strided:
            yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors_in(each)
