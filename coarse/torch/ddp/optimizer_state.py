"""One rank's optimizer state to all: its structure as JSON, its tensors as they are."""

import json
from typing import Any

import numpy as np
import torch

from coarse.parallel.data.alike import require_same
from coarse.parallel.data.byte_stream import require_one_root, stream_from
from coarse.session import current
from coarse.torch.broadcasting import broadcast_tensors

Plain = Any
"""None, a bool, number or string, or a list, tuple or dict of these and of tensors."""


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give every rank the root's state and settings, also where a rank has no state yet.

    Raises:
        TypeError: the root's state holds something that is neither tensor nor plain value.
        MismatchError: the ranks' groups have other numbers of parameters, or ranks name different roots (on all ranks).
        JoinedError: the root has joined.
    """
    require_one_root(root_rank, "coarse/optimizer state")
    groups = [(str(number), _parameters(group)) for number, group in enumerate(optimizer.param_groups)]
    require_same(groups, "the optimizer's group")
    is_root = current().client_index == root_rank
    tensors: list[torch.Tensor] = []
    text = b""
    if is_root:
        text = json.dumps(pack(optimizer.state_dict(), tensors)).encode()
    packed = json.loads(_broadcast_text(text, root_rank))
    if not is_root:
        state = unpack(packed, tensors)
    broadcast_tensors(tensors, root_rank, "coarse/optimizer state")
    if not is_root:
        optimizer.load_state_dict(state)


def pack(value: Plain, tensors: list[torch.Tensor], where: str = "state") -> Plain:
    """A value as what JSON can hold; its tensors are appended to `tensors` and stand by type and shape."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        items = [[pack(k, tensors), pack(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"dict": items}
    raise TypeError(
        f"{where} is a {type(value).__name__}, and an optimizer's state may hold tensors and plain "
        "values alone; take it out of the optimizer, and broadcast it by itself"
    )


def unpack(packed: Plain, tensors: list[torch.Tensor]) -> Plain:
    """The value of what `pack` made, with new tensors, which are appended to `tensors` in its order."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        dtype, shape = content
        tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
        return tensors[-1]
    if kind == "dict":
        return {unpack(k, tensors): unpack(v, tensors) for k, v in content}
    items = [unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def _broadcast_text(text: bytes, root_rank: int) -> bytes:
    length = np.array([len(text)], np.int64)
    stream_from(root_rank, [length.view(np.uint8)], "coarse/optimizer state/length")
    received = np.zeros(int(length[0]), np.uint8)
    received[: len(text)] = np.frombuffer(text, np.uint8)
    stream_from(root_rank, [received], "coarse/optimizer state/text")
    return received.tobytes()


def _parameters(group: dict[str, Any]) -> str:
    return f"{len(group['params'])} parameters"
