"""Broadcast of one rank's tensors to all, and gather of all ranks' tensors to all."""

import json
from collections.abc import Sequence

import torch

from coarse.errors import MismatchError
from coarse.parallel.data.byte_stream import require_one_root, stream, stream_blobs, stream_from
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.session import current
from coarse.torch.device_state import before_writing_to
from coarse.torch.tensors import (
    array_of,
    bytes_of,
    describe,
    flat_host_copies,
    has_wire_type,
    host_target,
    note_overwritten,
    on_host,
    require_whole,
)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str) -> torch.Tensor:
    """Write the root's values, bit for bit, into every rank's tensor, and return it.

    Raises:
        MismatchError: the ranks name different roots (on all ranks).
        JoinedError: the root has joined.
    """
    require_one_root(root_rank, name)
    runtime = current()
    client = runtime.require_client()
    is_root = runtime.client_index == root_rank
    staged = on_host(tensor).contiguous() if is_root else host_target(tensor)
    if has_wire_type(tensor.dtype):
        descriptor, array = describe(tensor, name, Op.SUM, 0), array_of(staged)
    else:
        staged = staged.contiguous()
        array = bytes_of(staged)
        shape = (*tensor.shape, tensor.element_size())
        descriptor = Descriptor(name, int(DType.UINT8), int(Op.SUM), shape, 0)
        array = array.reshape(shape)
    if not is_root:
        before_writing_to([tensor])
    client.push_pull(descriptor, array if is_root else None, array, present=is_root).wait()
    if not is_root:
        _deliver(tensor, staged)
    return tensor


def broadcast_tensors(tensors: Sequence[torch.Tensor], root_rank: int, name: str) -> None:
    """Overwrite every rank's tensors, of equal shapes and any types, with the root's bits."""
    if current().client_index != root_rank:
        before_writing_to(tensors)
    staged = flat_host_copies(tensors)
    stream([bytes_of(tensor) for tensor in staged], root_rank, name)
    if current().client_index == root_rank:
        return
    for tensor, values in zip(tensors, staged, strict=True):
        _deliver(tensor, values)


def _deliver(tensor: torch.Tensor, staged: torch.Tensor) -> None:
    """Bring received values into a tensor, if not there yet; see [Note: writes that autograd sees]."""
    if staged.data_ptr() == tensor.data_ptr():
        note_overwritten([tensor])
        return
    with torch.no_grad():
        tensor.copy_(staged)


def allgather(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return all ranks' tensors end to end along the first dimension, in which alone they may differ.

    Raises:
        MismatchError: types or other dimensions differ (on all ranks).
        JoinedError: a rank has joined.
    """
    require_whole(tensor, name)
    own = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    header = json.dumps([str(own.dtype), list(own.shape)]).encode()
    headers = [json.loads(blob) for blob in stream_blobs(header, f"{name}/shapes")]
    for rank, (dtype, shape) in enumerate(headers):
        if dtype != headers[0][0] or shape[1:] != headers[0][1][1:]:
            raise MismatchError(
                f"rank {current().client_index}: allgather of {name!r} wants tensors that differ in "
                f"their first dimension alone, but rank 0 has {_label(*headers[0])} and rank {rank} "
                f"has {_label(dtype, shape)}; reshape or convert them first"
            )
    num_rows = [shape[0] for _, shape in headers]
    gathered = torch.empty((sum(num_rows), *own.shape[1:]), dtype=own.dtype, device="cpu")
    for rank, block in enumerate(gathered.split(num_rows)):
        if rank == current().client_index:
            block.copy_(own)
        stream_from(rank, [bytes_of(block)], f"{name}/rows")
    return gathered.to(tensor.device)


def _label(dtype: str, shape: list[int]) -> str:
    return f"{dtype.removeprefix('torch.')}{shape}"
