"""Where the bytes for a tensor arrive: its own memory on the CPU; of one on a GPU, pinned host memory beside it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from coarse.collectives.awaited import Awaited, Copied
from coarse.gpu.available import gpus
from coarse.gpu.interface import Event
from coarse.gpu.staging import Stage, host_staging
from coarse.torch.on_gpu import goes_by_gpu, gpu_bytes_of, gpu_of, in_its_stream
from coarse.torch.tensors import bytes_of


class Arrival(Protocol):
    """A tensor's bytes on the host; the tensor is flat or at least contiguous, and has an element."""

    array: np.ndarray
    """(nbytes,) uint8"""

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Awaited | None]:
        """The bytes of another tensor of the same device, at `begin` of `array` if they are not on the host by
        themselves; and what they are there after."""
        ...

    def start(self) -> Event | None:
        """All of `array` has come: bring it into the tensor. The event with which it is there, if it isn't yet."""
        ...

    def finish(self) -> None:
        """In the user's thread, once `start` has returned: what the user does next finds the values."""
        ...

    def give_back(self) -> None:
        """In place of `start`: nothing has come, and nobody reads `array` any more."""
        ...


def arrival_of(tensor: torch.Tensor) -> Arrival:
    """See Arrival. What the user's stream does with the tensor until now comes before."""
    if goes_by_gpu(tensor) and tensor.numel():
        return _ByStage(tensor)
    return _InPlace(tensor) if tensor.device.type == "cpu" else _ByDetour(tensor)


class _InPlace:
    """On the CPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.array = bytes_of(tensor)

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Awaited | None]:
        """See Arrival."""
        return bytes_of(own), None

    def start(self) -> Event | None:
        """See Arrival."""
        return None

    def finish(self) -> None:
        """See Arrival."""

    def give_back(self) -> None:
        """See Arrival."""


class _ByDetour:
    """On a GPU where there is no CuPy: copies are torch's, and everything waits."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.array = bytes_of(self._host)

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Awaited | None]:
        """See Arrival."""
        return bytes_of(own.detach().cpu()), None

    def start(self) -> Event | None:
        """See Arrival."""
        return None

    def finish(self) -> None:
        """See Arrival."""
        self._tensor.copy_(self._host)

    def give_back(self) -> None:
        """See Arrival."""


class _ByStage:
    """On a GPU: by streams of their own and pinned host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._target = gpu_bytes_of(tensor)
        self._gpu = gpu_of(tensor)
        self._stage: Stage = host_staging().stage(self._gpu, self._target.nbytes)
        self.array = self._stage.bytes
        with in_its_stream(tensor):
            self._is_free = gpus().current_stream(self._gpu).record()
        self._arrived: Event | None = None

    def values_of(self, own: torch.Tensor, begin: int) -> tuple[np.ndarray, Awaited | None]:
        """See Arrival."""
        source = gpu_bytes_of(own)
        with in_its_stream(own):
            event = self._stage.read(source, begin)
        return self.array[begin : begin + source.nbytes], Copied(event, own)

    def start(self) -> Event | None:
        """See Arrival."""
        self._arrived = self._stage.write(self._target, self._is_free)
        self._stage.give_back(self._arrived)
        return self._arrived

    def finish(self) -> None:
        """See Arrival."""
        assert self._arrived is not None
        with in_its_stream(self._tensor):
            gpus().current_stream(self._gpu).wait_for(self._arrived)

    def give_back(self) -> None:
        """See Arrival."""
        self._stage.give_back()
