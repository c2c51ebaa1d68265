"""Plain values with torch's tensors among them, from one rank to all, and from all to all."""

from functools import partial
from typing import Any

import numpy as np
import torch

from coarse import plain
from coarse.plain import Plain
from coarse.session import current
from coarse.torch.groups.moving import allgather_async, broadcast_async_
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, members_of
from coarse.torch.tensors import bytes_of, on_host


class TorchTensors:
    """Tensors of torch among plain values; see Tensors."""

    def kind_of(self, value: object) -> list[Any] | None:
        """Return the type and shape of a dense tensor; None for another value."""
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            return [str(value.dtype).removeprefix("torch."), list(value.shape)]
        return None

    def blank(self, kind: list[Any]) -> torch.Tensor:
        """Return an uninitialised tensor of a type and shape on the host."""
        dtype, shape = kind
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")

    def of_bytes(self, array: np.ndarray) -> torch.Tensor:
        """Return a tensor over these bytes."""
        return torch.from_numpy(array)

    def bytes_of(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the bytes of a tensor on the host."""
        return bytes_of(on_host(tensor).contiguous())


TENSORS = TorchTensors()
pack = partial(plain.pack, own=TENSORS)
blank = partial(plain.blank, own=TENSORS)
unpack = partial(plain.unpack, own=TENSORS)
dumps = partial(plain.dumps, own=TENSORS)
loads = partial(plain.loads, own=TENSORS)


def broadcast_object(
    obj: Plain = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Plain:
    """Return the root's value on every rank: its own object there, equal ones elsewhere.

    Tensors are on the host. Calls are matched by their order; `name` is for errors.

    Raises:
        TypeError: the root's value holds something that is no plain value (on all ranks).
        ValueError: the root is no member.
        MismatchError: ranks name different roots (on all ranks).
    """
    is_root = current().client_index == root_rank
    blob = _sealed(obj, name) if is_root else b""
    length = torch.tensor([len(blob)], device="cpu")
    broadcast_async_(length, root_rank, name, process_set).wait()
    received = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
    if is_root:
        received[:] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    broadcast_async_(received, root_rank, name, process_set).wait()
    packed = _unsealed(received, f"broadcast_object from rank {root_rank}")
    return obj if is_root else loads(packed)


def allgather_object(
    obj: Plain, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Plain]:
    """Return every member's value, in order of rank; see broadcast_object.

    Raises:
        TypeError: a value that holds something that is no plain value (on all members).
    """
    own = torch.frombuffer(bytearray(_sealed(obj, name)), dtype=torch.uint8)
    counts = allgather_async(torch.tensor([own.numel()], device="cpu"), name and f"{name}/bytes", process_set)
    gathered = allgather_async(own, name, process_set).wait()
    parts = zip(members_of(process_set), gathered.split(counts.wait().tolist()), strict=True)
    return [loads(packed) for packed in [
        _unsealed(part, f"allgather_object of rank {member}'s value") for member, part in parts
    ]]  # fmt: skip


def _sealed(obj: Plain, name: str | None) -> bytes:
    """Return the bytes that travel of a rank's value: its own, or the reason why it has none."""
    try:
        return b"\0" + dumps(obj, name or "the object")
    except TypeError as error:
        return b"\1" + str(error).encode()


def _unsealed(received: torch.Tensor, call: str) -> bytes:
    """Return a value's bytes, from those of `_sealed`.

    Raises:
        TypeError: it has none; the error is the same on all ranks.
    """
    blob = received.numpy().tobytes()
    if blob[:1] == b"\1":
        raise TypeError(f"rank {current().client_index}: {call}: {blob[1:].decode()}")
    return blob[1:]
