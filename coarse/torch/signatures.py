"""Whether all ranks mean the same tensors, asked before any of them is exchanged."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch

from coarse.dtypes import DType, Op
from coarse.errors import MismatchError
from coarse.messages import Descriptor
from coarse.session import current
from coarse.torch.byte_stream import stream_blobs
from coarse.torch.tensors import is_dense

NamedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""A `state_dict()` or `named_parameters()`."""
Entries = Sequence[tuple[str, str]]
"""(name of a tensor, what it is), in order."""


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


def require_same(entries: Entries, what: str) -> None:
    """Raise MismatchError on every rank, naming the first entry at fault, unless all ranks' are equal.

    All ranks call it in one order. `what` names the entries in the error, such as "parameter".
    """
    text = json.dumps(list(entries)).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    extremes = np.array([digest, -digest], np.int64)
    client = current().require_client()
    descriptor = Descriptor("coarse/agreement", int(DType.INT64), int(Op.MAX), (2,), 0)
    client.push_pull(descriptor, extremes, extremes).wait()
    if extremes[0] == -extremes[1]:
        return
    lists = [json.loads(blob) for blob in stream_blobs(text, "coarse/agreement/entries")]
    raise MismatchError(f"rank {client.machine.client}: {first_difference(lists, what)}")


def first_difference(lists: Sequence[Entries], what: str) -> str:
    """The first entry in which some ranks' lists differ from others', in words."""
    tables = [dict(entries) for entries in lists]
    for name in dict.fromkeys(name for entries in lists for name, _ in entries):
        found = [table.get(name) for table in tables]
        if len(set(found)) > 1:
            kinds = dict.fromkeys(found)
            said = [f"{kind or 'missing'} on ranks {_at(found, kind)}" for kind in kinds]
            return f"{what} {name!r} differs between ranks: {'; '.join(said)}; build the same model on every rank"
    for position, row in enumerate(zip(*lists, strict=True)):
        names = [name for name, _ in row]
        if len(set(names)) > 1:
            said = [f"{name!r} on ranks {_at(names, name)}" for name in dict.fromkeys(names)]
            return (
                f"the order of {what}s differs between ranks: number {position} is "
                f"{'; '.join(said)}; list them in one order on every rank"
            )
    raise AssertionError("equal lists differ nowhere")


def _at(values: Sequence[str | None], value: str | None) -> list[int]:
    return [rank for rank, here in enumerate(values) if here == value]
