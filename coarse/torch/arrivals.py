"""Host memory at which a tensor's bytes arrive: its own on the CPU, pinned host memory for a GPU's."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from coarse.collectives.conditions import Condition, Copied
from coarse.gpu.available import gpus
from coarse.gpu.interface import Event
from coarse.gpu.staging import Stage, host_staging
from coarse.torch.on_gpu import goes_by_gpu, gpu_bytes_of, gpu_of, in_its_stream
from coarse.torch.tensors import bytes_of


class Arrival(Protocol):
    """Bytes of a tensor on the host; the tensor is flat or at least contiguous, and has an element."""

    array: np.ndarray
    """(nbytes,) uint8"""

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Condition | None]:
        """Return the bytes of another tensor of the same device, and the event after which they are there.

        They are at `begin` of `array` if they are not on the host by themselves.
        """
        ...

    def start(self) -> Event | None:
        """Bring all of `array`, which has come, into the tensor.

        Return the event with which it is there, or None if it is there.
        """
        ...

    def finish(self) -> None:
        """Let the user's next work find the values; called in the user's thread once `start` has returned."""
        ...

    def give_back(self) -> None:
        """Give `array`, which is read no more, back in place of `start`, as nothing has come."""
        ...


def arrival_of(tensor: torch.Tensor) -> Arrival:
    """Return the arrival of a tensor; earlier work of the user's stream on it comes before.

    Arrival has the details.
    """
    if goes_by_gpu(tensor) and tensor.numel():
        return _ByStage(tensor)
    return _InPlace(tensor) if tensor.device.type == "cpu" else _ByDetour(tensor)


class _InPlace:
    """Arrival of a tensor on the CPU, in its own memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.array = bytes_of(tensor)

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Condition | None]:
        """Return the other tensor's own bytes, which are on the host."""
        return bytes_of(own), None

    def start(self) -> Event | None:
        """Return None, as the bytes lie in the tensor."""
        return None

    def finish(self) -> None:
        """Do nothing, as the values are there."""

    def give_back(self) -> None:
        """Do nothing, as there is no memory to give back."""


class _ByDetour:
    """Arrival of a tensor on a GPU where there is no CuPy: copies are torch's, and everything waits."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.array = bytes_of(self._host)

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Condition | None]:
        """Return a copy of the other tensor's bytes on the host."""
        return bytes_of(own.detach().cpu()), None

    def start(self) -> Event | None:
        """Return None, as `finish` copies the bytes."""
        return None

    def finish(self) -> None:
        """Copy the bytes into the tensor."""
        self._tensor.copy_(self._host)

    def give_back(self) -> None:
        """Do nothing, as there is no shared memory."""


class _ByStage:
    """Arrival of a tensor on a GPU, by separate streams and pinned host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._target = gpu_bytes_of(tensor)
        self._gpu = gpu_of(tensor)
        self._stage: Stage = host_staging().stage(self._gpu, self._target.nbytes)
        self.array = self._stage.bytes
        with in_its_stream(tensor):
            self._is_free = gpus().current_stream(self._gpu).record()
        self._arrived: Event | None = None

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Condition | None]:
        """Begin to copy the other tensor's bytes into the pinned memory; return them and the copy's event."""
        source = gpu_bytes_of(own)
        with in_its_stream(own):
            event = self._stage.read(source, begin)
        return self.array[begin : begin + source.nbytes], Copied(event, own)

    def start(self) -> Event | None:
        """Begin to copy the pinned memory into the tensor, and give the memory back; return the copy's event."""
        self._arrived = self._stage.write(self._target, self._is_free)
        self._stage.give_back(self._arrived)
        return self._arrived

    def finish(self) -> None:
        """Have the user's stream wait for the copy."""
        assert self._arrived is not None
        with in_its_stream(self._tensor):
            gpus().current_stream(self._gpu).wait_for(self._arrived)

    def give_back(self) -> None:
        """Give the pinned memory back."""
        self._stage.give_back()
