"""Torch tensors as numpy arrays without a copy, their wire types, and the facts ranks agree on."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch.autograd.graph import increment_version

from coarse.arrays import checked
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor

_WIRE_OF = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
}
_TORCH_OF = {wire: dtype for dtype, wire in _WIRE_OF.items()}
_REMEDIES = {
    torch.bool: "convert it by .to(torch.uint8)",
    torch.int8: "convert it by .to(torch.int32)",
    torch.int16: "convert it by .to(torch.int32)",
    torch.complex64: "pass torch.view_as_real(tensor)",
    torch.complex128: "pass torch.view_as_real(tensor)",
}


def has_wire_type(dtype: torch.dtype) -> bool:
    """Return whether devices can add tensors of this type."""
    return dtype in _WIRE_OF


def wire_type_of(tensor: object, name: str) -> DType:
    """Return the type that a tensor has on the wire.

    Raises:
        TypeError: it has none; the error has the remedy.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name!r}: a torch tensor was wanted, {type(tensor).__name__} came")
    require_whole(tensor, name)
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name!r}: a dense tensor was wanted, one of {tensor.layout} came; pass .to_dense()")
    if tensor.device.type == "meta":
        raise TypeError(f"{name!r}: a meta tensor has no values; materialise it first")
    wire = _WIRE_OF.get(tensor.dtype)
    if wire is None:
        known = ", ".join(sorted(str(dtype) for dtype in _WIRE_OF))
        remedy = _REMEDIES.get(tensor.dtype, "convert it")
        raise TypeError(f"{name!r}: tensors of {tensor.dtype} cannot be synchronised; {remedy} (known: {known})")
    return wire


def require_whole(tensor: object, name: str) -> None:
    """Raise TypeError, with the remedy, for a tensor of which each rank has a part."""
    if _is_dtensor(tensor):
        raise TypeError(
            f"{name!r} is a DTensor, of which each rank has a part; pass its .to_local() or .full_tensor(). The "
            "optimizer of a sharded model is not wrapped: its gradients are summed already"
        )


def _is_dtensor(tensor: object) -> bool:
    """Return whether a tensor is a DTensor.

    There is none before the module of DTensor was imported, which takes as long as half of torch.
    """
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def torch_type_of(wire: int) -> torch.dtype:
    """Return the torch type of a type on the wire."""
    return _TORCH_OF[DType(wire)]


def describe(tensor: torch.Tensor, name: str, op: Op, priority: int) -> Descriptor:
    """Return the descriptor of a tensor.

    Raises:
        TypeError: it cannot be synchronised by this operation.
    """
    wire = wire_type_of(tensor, name)
    return checked(Descriptor(name, int(wire), int(Op(op)), tuple(tensor.shape), priority))


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a CPU tensor as an array of its shape; bfloat16 as uint16, which numpy knows."""
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    return plain.numpy()


def tensor_of(array: np.ndarray, wire: int) -> torch.Tensor:
    """Return an array of a wire type's storage as a tensor, which keeps its memory alive."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if DType(wire) is DType.BFLOAT16 else tensor


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself where numpy can read it, else a copy of its values on the host."""
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def host_target(tensor: torch.Tensor) -> torch.Tensor:
    """Return the target of a result for `tensor`: its own memory, or a staging buffer on the host."""
    is_direct = tensor.device.type == "cpu" and not tensor.is_neg() and not tensor.is_conj()
    return tensor.detach() if is_direct else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def note_overwritten(tensors: Iterable[torch.Tensor]) -> None:
    """Tell autograd that tensors were, or are about to be, written to without its notice.

    [Note: writes that autograd sees] A device or MPI writes to memory and not to tensors, so the version counters by
    which autograd knows that a saved tensor has changed stay as they are. Code that starts such a write tells autograd
    so at the start, for tensors saved before, and at the end, for those saved in between.
    """
    increment_version(list(tensors))


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a dense, contiguous CPU tensor of any type as a flat array."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def flat_host_copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous host tensors with the values; those that are so already are returned themselves."""
    return [on_host(tensor).contiguous() for tensor in tensors]


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the strides reach every element of one block exactly once, in any dimension order."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return tensor.numel() > 0


NamedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""Parameters with names: a `state_dict()` or `named_parameters()`."""


def signature(tensor: torch.Tensor) -> str:
    """Return a tensor's facts that all ranks must agree on, for people: `float32[3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def names_of(named_parameters: NamedTensors) -> dict[torch.Tensor, str]:
    """Return each parameter's name, in order; a tied one has its first."""
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
    """Return the facts that all ranks must agree on: type, shape, and the order of elements in memory."""
    if parameter.is_contiguous() or not is_dense(parameter):
        return signature(parameter)
    return f"{signature(parameter)} with strides {list(parameter.stride())}"
