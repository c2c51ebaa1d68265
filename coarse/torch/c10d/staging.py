"""Tensors as flat arrays that MPI reads and writes: their own memory where that is possible, else copies."""

from collections.abc import Sequence

import numpy as np
import torch

from coarse.torch.c10d.reduction import Array
from coarse.torch.tensors import bytes_of, note_overwritten, on_host


def element_label(tensor: torch.Tensor) -> str:
    """The name of a tensor's element type, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def require_dense(tensors: Sequence[torch.Tensor], what: str) -> None:
    """TypeError for a tensor that has no elements side by side in memory."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: a tensor was wanted, {type(tensor).__name__} came")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{what}: a dense tensor was wanted, one of {tensor.layout} came; pass .to_dense()")
        if tensor.device.type == "meta":
            raise TypeError(f"{what}: a meta tensor has no values; materialise it first")


def read(tensor: torch.Tensor) -> Array:
    """(nbytes,) uint8, the values of a tensor in row-major order; to be read only."""
    return bytes_of(on_host(tensor).contiguous())


def joined(tensors: Sequence[torch.Tensor]) -> Array:
    """(sum of nbytes,) uint8, the values of several tensors end to end, in memory of their own."""
    return np.concatenate([read(tensor) for tensor in tensors]) if tensors else np.empty(0, np.uint8)


def finish(tensor: torch.Tensor) -> None:
    """Return once a GPU has done to a tensor what this thread has asked of it: nothing still writes to it."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()


class Target:
    """Where the bytes for a tensor arrive; see [Note: writes that autograd sees].

    Args:
        tensor: dense, on any device and with any strides.
        is_read: whether its present values are wanted too.
    """

    def __init__(self, tensor: torch.Tensor, *, is_read: bool) -> None:
        self._tensor = tensor.detach()
        is_plain = not tensor.is_conj() and not tensor.is_neg()
        is_direct = tensor.device.type == "cpu" and tensor.is_contiguous() and is_plain
        finish(tensor)
        if is_direct:
            self._staged = self._tensor
        elif is_read:
            self._staged = on_host(tensor).contiguous().clone()
        else:
            self._staged = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.array: Array = bytes_of(self._staged)
        """(nbytes,) uint8"""

    def note_overwritten(self) -> None:
        """Tell autograd that the tensor is about to be written to."""
        note_overwritten([self._tensor])

    def deliver(self) -> None:
        """Bring what has arrived into the tensor, where it is not there yet."""
        if self._staged is not self._tensor:
            write(self._tensor, self._staged)
        self.note_overwritten()


class Targets:
    """Where the bytes for several tensors arrive, end to end; see [Note: writes that autograd sees]."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self.nbytes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        self.array: Array = np.empty(sum(self.nbytes), np.uint8)
        """(sum of nbytes,) uint8"""

    def note_overwritten(self) -> None:
        """Tell autograd that the tensors are about to be written to."""
        note_overwritten(self._tensors)

    def deliver(self) -> None:
        """Bring what has arrived into the tensors."""
        begin = 0
        for tensor, nbytes in zip(self._tensors, self.nbytes, strict=True):
            part = torch.from_numpy(self.array[begin : begin + nbytes])
            begin += nbytes
            if nbytes:
                write(tensor, _typed(part, tensor))
        self.note_overwritten()


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Overwrite a tensor's values, of which autograd takes no note by itself, as it takes none of a write by MPI."""
    with torch.no_grad():
        tensor.data.copy_(values)
    finish(tensor)


def _typed(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(nbytes,) uint8 as a tensor of the type and shape of `like`."""
    if part.storage_offset() % like.element_size() or part.data_ptr() % like.element_size():
        part = part.clone()
    return part.view(like.dtype).view(like.shape)
