# Pure: no MPI, threads, clock or environment.
"""Plain values with tensors among them, as JSON with the tensors beside it.

Nothing is pickled, so bytes from elsewhere can make no objects other than these.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

Plain = Any
"""Plain value: None, a bool, number, string or bytes, an array or tensor, or a list, tuple, set or dict of these."""
_KINDS: dict[str, type] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict, "OrderedDict": OrderedDict,
}  # fmt: skip


class Tensors(Protocol):
    """Tensors of a framework, which hold the bytes of arrays too."""

    def kind_of(self, value: Any) -> list[Any] | None:  # noqa: ANN401
        """Return a tensor's type and shape, as JSON can hold them; None for any other value."""
        ...

    def blank(self, kind: list[Any]) -> Any:  # noqa: ANN401
        """Return a host tensor of this type and shape."""
        ...

    def of_bytes(self, array: np.ndarray) -> Any:  # noqa: ANN401
        """Return a tensor with the bytes of a (n,) uint8 array, which it takes over."""
        ...

    def bytes_of(self, tensor: Any) -> np.ndarray:  # noqa: ANN401
        """Return a host tensor's memory, or a copy of another's, as (n,) uint8."""
        ...


class Arrays:
    """Tensors for code without a framework: only numpy's arrays."""

    def kind_of(self, value: object) -> list[Any] | None:
        """Return None, since arrays are plain values."""
        return None

    def blank(self, kind: list[Any]) -> np.ndarray:
        """Return an empty array of this type and shape."""
        dtype, shape = kind
        return np.empty(shape, dtype)

    def of_bytes(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return array

    def bytes_of(self, tensor: np.ndarray) -> np.ndarray:
        """Return the array's memory as (n,) uint8."""
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


ARRAYS = Arrays()


def pack(value: Plain, tensors: list[Any], where: str = "state", own: Tensors = ARRAYS) -> Plain:
    """Return a value as JSON can hold it, with types and shapes in place of its tensors.

    The tensors are appended to `tensors`.

    Raises:
        TypeError: something that is neither plain value nor tensor; `where` is the value's name for people.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if (kind := own.kind_of(value)) is not None:
        tensors.append(value)
        return {"tensor": kind}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.ascontiguousarray(value)
        tensors.append(own.of_bytes(array.reshape(-1).view(np.uint8).copy()))
        name = "array" if isinstance(value, np.ndarray) else "number"
        return {name: [array.dtype.str, list(value.shape), array.nbytes]}
    if isinstance(value, bytes | bytearray):
        tensors.append(own.of_bytes(np.frombuffer(bytearray(value), np.uint8)))
        return {"bytes": [type(value).__name__, len(value)]}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) in (list, tuple, set, frozenset):
        return {type(value).__name__: [pack(item, tensors, f"{where}[{i}]", own) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        items = [[pack(k, tensors, own=own), pack(v, tensors, f"{where}[{k!r}]", own)] for k, v in value.items()]
        return {"OrderedDict" if isinstance(value, OrderedDict) else "dict": items}
    bases: tuple[Any, ...] = (int, float, str, list, tuple)
    for base in bases:  # what is derived from one comes as that
        if isinstance(value, base):
            return pack(str.__str__(value) if base is str else base(value), tensors, where, own)
    layout = f" of {value.layout}" if hasattr(value, "layout") else ""
    raise TypeError(
        f"{where} is a {type(value).__name__}{layout}, and tensors, arrays and plain values alone travel "
        "between ranks and into files: nothing is pickled; take it out, or send what it is made from"
    )


def blank(packed: Plain, own: Tensors = ARRAYS) -> list[Any]:
    """Return blank tensors for those that `pack` appended, in its order."""
    if not isinstance(packed, dict):
        return []
    ((kind, content),) = packed.items()
    match kind:
        case "tensor":
            return [own.blank(content)]
        case "array" | "number" | "bytes":
            return [own.of_bytes(np.empty(content[-1], np.uint8))]
        case "complex":
            return []
        case "dict" | "OrderedDict":
            return [tensor for key, value in content for tensor in (*blank(key, own), *blank(value, own))]
        case _:
            return [tensor for item in content for tensor in blank(item, own)]


def unpack(packed: Plain, tensors: Iterator[Any], own: Tensors = ARRAYS) -> Plain:
    """Return the value from which `pack` made `packed`, with these tensors."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    match kind:
        case "tensor":
            return next(tensors)
        case "array" | "number":
            dtype, shape, _ = content
            array = own.bytes_of(next(tensors)).view(dtype).reshape(shape)
            return array if kind == "array" else array[()]
        case "bytes":
            made = own.bytes_of(next(tensors)).tobytes()
            return bytearray(made) if content[0] == "bytearray" else made
        case "complex":
            return complex(*content)
        case "dict" | "OrderedDict":
            return _KINDS[kind]((unpack(key, tensors, own), unpack(value, tensors, own)) for key, value in content)
        case _:
            return _KINDS[kind](unpack(item, tensors, own) for item in content)


def dumps(value: Plain, where: str, own: Tensors = ARRAYS) -> bytes:
    """Return a value's bytes; raise TypeError for all that `pack` refuses."""
    tensors: list[Any] = []
    text = json.dumps(pack(value, tensors, where, own)).encode()
    parts = [own.bytes_of(tensor).tobytes() for tensor in tensors]
    return b"".join([len(text).to_bytes(8, sys.byteorder), text, *parts])


def loads(blob: bytes, own: Tensors = ARRAYS) -> Plain:
    """Return the value from which `dumps` made the bytes; its tensors are on the host."""
    at = 8 + int.from_bytes(blob[:8], sys.byteorder)
    packed = json.loads(blob[8:at])
    tensors = blank(packed, own)
    for tensor in tensors:
        values = own.bytes_of(tensor)
        values[:] = np.frombuffer(blob, np.uint8, values.nbytes, at)
        at += values.nbytes
    return unpack(packed, iter(tensors), own)
