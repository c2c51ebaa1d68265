"""Broadcast of one rank's optimizer state: its structure as JSON, its tensors as they are."""

import json
from typing import Any

import numpy as np
import torch

from coarse.parallel.data.byte_stream import require_one_root, stream_from
from coarse.parallel.data.equal_values import require_same
from coarse.session import current
from coarse.torch.broadcasting import broadcast_tensors
from coarse.torch.groups.objects import blank, pack, unpack


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
        text = json.dumps(pack(optimizer.state_dict(), tensors, "the optimizer's state")).encode()
    packed = json.loads(_broadcast_text(text, root_rank))
    if not is_root:
        tensors = blank(packed)
    broadcast_tensors(tensors, root_rank, "coarse/optimizer state")
    if not is_root:
        optimizer.load_state_dict(unpack(packed, iter(tensors)))


def _broadcast_text(text: bytes, root_rank: int) -> bytes:
    length = np.array([len(text)], np.int64)
    stream_from(root_rank, [length.view(np.uint8)], "coarse/optimizer state/length")
    received = np.zeros(int(length[0]), np.uint8)
    received[: len(text)] = np.frombuffer(text, np.uint8)
    stream_from(root_rank, [received], "coarse/optimizer state/text")
    return received.tobytes()


def _parameters(group: dict[str, Any]) -> str:
    return f"{len(group['params'])} parameters"
