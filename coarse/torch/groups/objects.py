"""Plain values with tensors among them as bytes, and such values from one rank to all, and from all to all.

Nothing is pickled: bytes from another rank can make no other objects than these.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from coarse.session import current
from coarse.torch.groups.moving import allgather_async, broadcast_async_
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, members_of
from coarse.torch.tensors import bytes_of, on_host

Plain = Any
"""None, a bool, number, string or bytes, an array or tensor, or a list, tuple, set or dict of these."""
_KINDS: dict[str, type] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict, "OrderedDict": OrderedDict,
}  # fmt: skip


def pack(value: Plain, tensors: list[torch.Tensor], where: str = "state") -> Plain:
    """A value as what JSON can hold; its tensors are appended to `tensors` and stand by type and shape.

    Raises:
        TypeError: something that is neither plain value nor tensor; `where` is the value's name for people.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.ascontiguousarray(value)
        tensors.append(torch.from_numpy(array.reshape(-1).view(np.uint8).copy()))
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {kind: [array.dtype.str, list(value.shape), array.nbytes]}
    if isinstance(value, bytes | bytearray):
        tensors.append(torch.frombuffer(bytearray(value) or bytearray(1), dtype=torch.uint8)[: len(value)])
        return {"bytes": [type(value).__name__, len(value)]}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (list, tuple, set, frozenset):
        return {type(value).__name__: [pack(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        items = [[pack(k, tensors), pack(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"OrderedDict" if isinstance(value, OrderedDict) else "dict": items}
    bases: tuple[Any, ...] = (int, float, str, list, tuple)
    for base in bases:  # what is derived from one comes as that
        if isinstance(value, base):
            return pack(str.__str__(value) if base is str else base(value), tensors, where)
    raise TypeError(
        f"{where} is a {type(value).__name__}{_layout(value)}, and tensors, arrays and plain values alone travel "
        "between ranks and into files: nothing is pickled; take it out, or send what it is made from"
    )


def _layout(value: object) -> str:
    return f" of {value.layout}" if isinstance(value, torch.Tensor) else ""


def blank(packed: Plain) -> list[torch.Tensor]:
    """Tensors for the values of those that `pack` appended, in its order."""
    if not isinstance(packed, dict):
        return []
    ((kind, content),) = packed.items()
    match kind:
        case "tensor":
            dtype, shape = content
            return [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")]
        case "array" | "number" | "bytes":
            return [torch.empty(content[-1], dtype=torch.uint8, device="cpu")]
        case "complex":
            return []
        case "dict" | "OrderedDict":
            return [tensor for key, value in content for tensor in (*blank(key), *blank(value))]
        case _:
            return [tensor for item in content for tensor in blank(item)]


def unpack(packed: Plain, tensors: Iterator[torch.Tensor]) -> Plain:
    """The value of what `pack` made, with tensors of those values."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    match kind:
        case "tensor":
            return next(tensors)
        case "array" | "number":
            dtype, shape, _ = content
            array = next(tensors).numpy().view(dtype).reshape(shape)
            return array if kind == "array" else array[()]
        case "bytes":
            made = next(tensors).numpy().tobytes()
            return bytearray(made) if content[0] == "bytearray" else made
        case "complex":
            return complex(*content)
        case "dict" | "OrderedDict":
            return _KINDS[kind]((unpack(key, tensors), unpack(value, tensors)) for key, value in content)
        case _:
            return _KINDS[kind](unpack(item, tensors) for item in content)


def dumps(value: Plain, where: str) -> bytes:
    """A value's bytes; TypeError for what `pack` refuses."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(pack(value, tensors, where)).encode()
    parts = [bytes_of(on_host(tensor).contiguous()).tobytes() for tensor in tensors]
    return b"".join([len(text).to_bytes(8, sys.byteorder), text, *parts])


def loads(blob: bytes) -> Plain:
    """The value of what `dumps` made; its tensors are on the host."""
    at = 8 + int.from_bytes(blob[:8], sys.byteorder)
    packed = json.loads(blob[8:at])
    tensors = blank(packed)
    for tensor in tensors:
        values = bytes_of(tensor)
        values[:] = np.frombuffer(blob, np.uint8, values.nbytes, at)
        at += values.nbytes
    return unpack(packed, iter(tensors))


def broadcast_object(
    obj: Plain = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Plain:
    """The root's value on every rank: the root's own object there, equal ones elsewhere, with tensors on the host.

    Calls are matched by their order; `name` is for errors.

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
    """Every member's value, in order of rank; see broadcast_object.

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
    """What travels of a rank's value: its bytes, or why it has none."""
    try:
        return b"\0" + dumps(obj, name or "the object")
    except TypeError as error:
        return b"\1" + str(error).encode()


def _unsealed(received: torch.Tensor, call: str) -> bytes:
    """A value's bytes, of what `_sealed` made; the same TypeError on all ranks where it has none."""
    blob = received.numpy().tobytes()
    if blob[:1] == b"\1":
        raise TypeError(f"rank {current().client_index}: {call}: {blob[1:].decode()}")
    return blob[1:]
