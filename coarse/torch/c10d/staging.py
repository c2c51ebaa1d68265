"""Tensors as flat arrays that MPI reads and writes: their own memory if possible, else copies."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import numpy as np
import torch

from coarse.collectives.conditions import Condition, Copied
from coarse.gpu.available import gpus
from coarse.gpu.interface import Event
from coarse.gpu.staging import Stage, host_staging
from coarse.torch.arrivals import Arrival, arrival_of
from coarse.torch.c10d.reduction import Array
from coarse.torch.on_gpu import (
    contiguous_on_gpu,
    empty_beside,
    goes_by_gpu,
    gpu_bytes_of,
    gpu_of,
    in_its_stream,
    is_on_gpu,
    new_on_gpu,
)
from coarse.torch.tensors import bytes_of, note_overwritten, on_host


def element_label(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's element type, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def require_dense(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise TypeError for a tensor that has no elements side by side in memory."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what}: a tensor was wanted, {type(tensor).__name__} came")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{what}: a dense tensor was wanted, one of {tensor.layout} came; pass .to_dense()")
        if tensor.device.type == "meta":
            raise TypeError(f"{what}: a meta tensor has no values; materialise it first")


def read(tensor: torch.Tensor) -> Array:
    """Return a tensor's values in row-major order, (nbytes,) uint8, to be read only."""
    return bytes_of(on_host(tensor).contiguous())


def joined(tensors: Sequence[torch.Tensor]) -> Array:
    """Return the values of several tensors end to end, (sum of nbytes,) uint8, in separate memory."""
    return np.concatenate([read(tensor) for tensor in tensors]) if tensors else np.empty(0, np.uint8)


def finish(tensor: torch.Tensor) -> None:
    """Return once a GPU has done this thread's work on a tensor, so that nothing still writes to it."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()


class Copies:
    """Copies of one call's tensors between GPUs and the host.

    It is made, and asked for arrays, in the caller's thread, which waits for no copy; `arrive` and `deliver` are steps
    of the call's job. Work of a thread in torch's stream until then comes before.
    """

    def __init__(self) -> None:
        self._coming: list[Condition] = []
        self._stages: list[Stage] = []
        self._targets: list[Target | Targets] = []

    def read(self, tensor: torch.Tensor) -> Array:
        """Return a tensor's values in row-major order, (nbytes,) uint8, to be read only when they are there."""
        return self.joined([tensor]) if _crosses(tensor) else read(tensor)

    def joined(self, tensors: Sequence[torch.Tensor]) -> Array:
        """Return the values of several tensors end to end, (sum of nbytes,) uint8, in separate memory.

        They are there once they have arrived.
        """
        if not any(_crosses(tensor) for tensor in tensors):
            return joined(tensors)
        stage, begin = _stage_for(tensors), 0
        self._stages.append(stage)
        for tensor in tensors:
            if _crosses(tensor):
                whole = contiguous_on_gpu(tensor)
                with in_its_stream(tensor):
                    self._coming.append(Copied(stage.read(gpu_bytes_of(whole), begin), whole))
            else:
                stage.bytes[begin : begin + tensor.nbytes] = read(tensor)
            begin += tensor.nbytes
        return stage.bytes

    def target(self, tensor: torch.Tensor, *, is_read: bool) -> Target:
        """Return the target of a tensor's bytes; `is_read`: its present values are wanted too."""
        self._targets.append(found := Target(tensor, is_read=is_read, coming=self._coming))
        return found

    def targets(self, tensors: Sequence[torch.Tensor]) -> Targets:
        """Return the target of several tensors' bytes."""
        self._targets.append(found := Targets(tensors))
        return found

    def then(self, steps: Iterable[Iterable[Condition]]) -> Generator[Condition, None, None]:
        """Run steps one after the other, once the values that they read are on the host."""
        yield from self.arrive()
        for one in steps:
            yield from one

    def arrive(self) -> Generator[Condition, None, None]:
        """Wait until the values that are read are on the host."""
        yield from self._coming

    def deliver(self, wanted: Sequence[Target | Targets]) -> Generator[Condition, None, None]:
        """Bring received bytes into the tensors of these targets."""
        for stage in self._stages:
            stage.give_back()
        for target in self._targets:
            if target in wanted:
                yield from target.deliver()
            else:
                target.give_back()


class Target:
    """Target of a tensor's bytes; see [Note: writes that autograd sees].

    Args:
        tensor: dense, on any device and with any strides.
        is_read: True if its present values are wanted too.
        coming: gets the events that are waited for until they are there.
    """

    def __init__(self, tensor: torch.Tensor, *, is_read: bool, coming: list[Condition]) -> None:
        self._tensor = tensor.detach()
        self._arrival: Arrival | None = None
        is_direct = _is_plain(tensor)
        if _crosses(tensor):
            self._staged = self._tensor if is_direct else new_on_gpu(tensor)
            if not is_direct:
                if is_read:
                    self._staged.copy_(self._tensor)
                finish(tensor)  # `write` comes from another thread
            self._arrival = arrival_of(self._staged)
            if is_read:
                _, after = self._arrival.values_of(self._staged, 0)
                assert after is not None
                coming.append(after)
            self.array: Array = self._arrival.array
            """(nbytes,) uint8"""
            return
        finish(tensor)
        if is_direct and tensor.device.type == "cpu":
            self._staged = self._tensor
        elif is_read:
            self._staged = on_host(tensor).contiguous().clone()
        else:
            self._staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.array = bytes_of(self._staged)

    def note_overwritten(self) -> None:
        """Tell autograd that the tensor is about to be written to."""
        note_overwritten([self._tensor])

    def deliver(self) -> Generator[Condition, None, None]:
        """Bring received bytes into the tensor, where they are not there yet."""
        event = None if self._arrival is None else self._arrival.start()
        if event is not None:
            yield Copied(event)
        if self._staged is not self._tensor:
            write(self._tensor, self._staged)
        self.note_overwritten()

    def give_back(self) -> None:
        """Give the memory back, as nothing has arrived."""
        if self._arrival is not None:
            self._arrival.give_back()


class Targets:
    """Target of several tensors' bytes, end to end; see [Note: writes that autograd sees]."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self.nbytes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        self._stage: Stage | None = None
        self._is_free: dict[int, Event] = {}
        """Event of each GPU after which torch's stream has done the work that it had under way."""
        if any(_crosses(tensor) for tensor in tensors):
            self._stage = _stage_for(tensors)
            for gpu, tensor in {gpu_of(tensor): tensor for tensor in tensors if _crosses(tensor)}.items():
                with in_its_stream(tensor):
                    self._is_free[gpu] = gpus().current_stream(gpu).record()
        self.array: Array = np.empty(sum(self.nbytes), np.uint8) if self._stage is None else self._stage.bytes
        """(sum of nbytes,) uint8"""

    def note_overwritten(self) -> None:
        """Tell autograd that the tensors are about to be written to."""
        note_overwritten(self._tensors)

    def deliver(self) -> Generator[Condition, None, None]:
        """Bring received bytes into the tensors."""
        begin, copied = 0, dict[int, Event]()
        for tensor, nbytes in zip(self._tensors, self.nbytes, strict=True):
            if self._stage is not None and _crosses(tensor) and _is_plain(tensor):
                gpu = gpu_of(tensor)
                copied[gpu] = self._stage.write(gpu_bytes_of(tensor), self._is_free[gpu], begin)
            elif nbytes:
                write(tensor, _typed(torch.from_numpy(self.array[begin : begin + nbytes]), tensor))
            begin += nbytes
        for event in copied.values():
            yield Copied(event)
        self.give_back()
        self.note_overwritten()

    def give_back(self) -> None:
        """Give the memory back, as nothing arrives any more."""
        if self._stage is not None:
            self._stage.give_back()


def brought(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a host tensor's values on the device of another; they are there when this returns."""
    if like.device.type == "cpu" and not is_on_gpu(like):
        return values
    found = empty_beside(like, values.shape, values.dtype)
    write(found, values)
    return found


def _crosses(tensor: torch.Tensor) -> bool:
    """Return whether a tensor comes to the host, and from it, by streams of a GPU."""
    return goes_by_gpu(tensor) and tensor.numel() > 0


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _stage_for(tensors: Sequence[torch.Tensor]) -> Stage:
    """Return host memory for the bytes of several tensors, of which some are on GPUs."""
    first = next(tensor for tensor in tensors if _crosses(tensor))
    return host_staging().stage(gpu_of(first), sum(tensor.nbytes for tensor in tensors))


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Overwrite a tensor's values, unseen by autograd, as a write by MPI is."""
    with torch.no_grad():
        tensor.data.copy_(values)
    finish(tensor)


def _typed(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return (nbytes,) uint8 as a tensor of the type and shape of `like`."""
    if part.storage_offset() % like.element_size() or part.data_ptr() % like.element_size():
        part = part.clone()
    return part.view(like.dtype).view(like.shape)
