"""Arrays on GPUs by way of pinned host memory, for collectives, which exchange on the host.

Copies run in separate streams, one for each way; see [Note: streams]. A copy to the host begins once the user's stream
has written its source; a copy to a GPU once the user's stream has read the memory that it overwrites. So only a user of
the bytes waits.
"""

import threading
import warnings
from collections import deque
from functools import cache

import numpy as np

from coarse.errors import CapacityError, GpuError, UnsupportedError
from coarse.gpu.available import gpus
from coarse.gpu.buffers import GpuBuffers
from coarse.gpu.interface import Event, GpuArray, Stream


class Stage:
    """Host memory beside arrays on GPUs, taken until `give_back`."""

    def __init__(self, staging: "HostStaging", gpu: int, nbytes: int) -> None:
        self._staging = staging
        self._gpu = gpu
        self._memory, self._is_pinned = staging.take(gpu, nbytes)
        self.bytes = self._memory[:nbytes]
        """Uninitialised host memory, (nbytes,) uint8, pinned where CUDA pins."""

    def read(self, source: GpuArray, begin: int = 0) -> Event:
        """Start to copy a contiguous array to `bytes`, from `begin` on; return the copy's event.

        The copy comes after the work that the user's stream has under way.
        """
        gpu = gpus().gpu_of(source)
        stream = self._staging.stream("to the host", gpu)
        stream.wait_for(gpus().current_stream(gpu).record())
        stream.arrays.copy(self.bytes[begin : begin + source.nbytes], source)
        event = stream.record()
        if self._is_pinned:
            self._staging.keep(self._memory, event)
        return event

    def write(self, target: GpuArray, is_free: Event, begin: int = 0) -> Event:
        """Start to copy `bytes`, from `begin` on, to a contiguous array; return the copy's event.

        The copy begins once the user's stream has come to `is_free`, and so has done the work that it had under way.
        """
        stream = self._staging.stream("to the GPU", gpus().gpu_of(target))
        stream.wait_for(is_free)
        stream.arrays.copy(target, self.bytes[begin : begin + target.nbytes])
        return stream.record()

    def give_back(self, once: Event | None = None) -> None:
        """Give the memory to others, once an event has come.

        Nothing more is read from it or written to it.
        """
        if self._is_pinned:
            self._staging.give_back(self._gpu, self._memory, once)


class HostStaging:
    """Streams and pinned memory of one process, by GPU; any thread may ask for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[int, GpuBuffers] = {}
        self._streams: dict[tuple[str, int], Stream] = {}
        self._leaving: deque[tuple[int, np.ndarray, Event]] = deque()
        """(GPU, memory, event) of memory that is free once its event has come."""
        self._written: deque[tuple[np.ndarray, Event]] = deque()
        """(Memory, event) of copies to the host: a call that is given up before they end releases the memory."""
        self._may_pin = True
        self.refusal: str | None = None
        """Reason why an emulated job has no times of copies between GPUs and hosts; None in a live one."""

    def stage(self, gpu: int, nbytes: int) -> Stage:
        """Return host memory for so many bytes of a GPU.

        Raises:
            UnsupportedError: the job is emulated.
        """
        if self.refusal is not None:
            raise UnsupportedError(self.refusal)
        return Stage(self, gpu, nbytes)

    def take(self, gpu: int, nbytes: int) -> tuple[np.ndarray, bool]:
        """Return at least `nbytes` bytes of host memory, uint8, and whether it is pinned.

        Once CUDA has refused, none is.
        """
        with self._lock:
            self._reap()
            if self._may_pin:
                try:
                    return self._of(gpu).take_on_host(nbytes), True
                except (CapacityError, GpuError) as refused:
                    self._may_pin = False
                    warnings.warn(
                        f"{refused}; copies between GPUs and host memory that is not pinned hold up backward",
                        RuntimeWarning,
                        stacklevel=4,
                    )
            return np.empty(nbytes, np.uint8), False

    def give_back(self, gpu: int, memory: np.ndarray, once: Event | None) -> None:
        """Give memory to others if it is pinned; see Stage."""
        with self._lock:
            if once is not None:
                self._leaving.append((gpu, memory, once))
            else:
                self._of(gpu).give_back([memory], [])

    def keep(self, memory: np.ndarray, until: Event) -> None:
        """Keep pinned memory that is written to until an event.

        CUDA would give it to others as soon as it has no reference.
        """
        with self._lock:
            self._written.append((memory, until))

    def stream(self, way: str, gpu: int) -> Stream:
        """Return the stream of the copies of one way."""
        with self._lock:
            found = self._streams.get((way, gpu))
            if found is None:
                found = self._streams[way, gpu] = gpus().stream(gpu)
            return found

    def _of(self, gpu: int) -> GpuBuffers:
        if gpu not in self._buffers:
            self._buffers[gpu] = GpuBuffers(gpus(), gpu)
        return self._buffers[gpu]

    def _reap(self) -> None:
        """Take back the memory of copies that have ended, in their order, which is that of streams."""
        while self._written and _has_ended(self._written[0][1]):
            self._written.popleft()
        while self._leaving:
            gpu, memory, once = self._leaving[0]
            try:
                if not once.is_done():
                    return
            except GpuError:  # whoever waits for the copy hears of it
                self._leaving.popleft()
                continue
            self._leaving.popleft()
            self._of(gpu).give_back([memory], [])


def _has_ended(copied: Event) -> bool:
    try:
        return copied.is_done()
    except GpuError:
        return False  # nor will it ever


@cache
def host_staging() -> HostStaging:
    """Return this process's staging."""
    return HostStaging()
