"""Sums of a memory device on a GPU: started in turn, and over once their events are, without a wait.

[Note: in order] All of a device's sums are in one stream, so they end in the order in which they were started. A ring's
result is written by the stream too, and all that the device sends after that write may go out only once the write
is done: until then it waits, in order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coarse.gpu.buffers import GpuBuffers, Lent
from coarse.gpu.interface import AnyArray, Event, Gpus
from coarse.protocol.dtypes import DType, Op
from coarse.proxy.instructions import Reduce, Region, RingReduce
from coarse.proxy.ring_buffers import ArrayOf
from coarse.storage.reduce import identity

MOST_UNDER_WAY = 2
"""Number of sums started at a time: one is added while the next waits for the GPU. More would wait there before a more
urgent one that comes later."""


class _Step(NamedTuple):
    """Action to be done once an event is, or, if the event is None, once all earlier steps are."""

    event: Event | None
    then: Callable[[], None]


class GpuSums:
    """Queue of a device's sums on one GPU; see [Note: in order]."""

    def __init__(self, gpus: Gpus, gpu: int, array_of: ArrayOf, is_direct: Callable[[int], bool]) -> None:
        """Open the GPU's stream and buffers.

        `array_of` returns the elements of a region, and `is_direct` whether this GPU reaches a device's memory.
        """
        self._stream = gpus.stream(gpu)
        self._arrays = self._stream.arrays
        self._buffers = GpuBuffers(gpus, gpu)
        self._array_of = array_of
        self._is_direct = is_direct
        self._steps: deque[_Step] = deque()
        self._num_sums = self._num_writes = 0
        self.staged_bytes = 0
        """Bytes that went through pinned host memory for want of peer access."""

    @property
    def has_room(self) -> bool:
        """True if another sum may be started."""
        return self._num_sums < MOST_UNDER_WAY

    @property
    def is_busy(self) -> bool:
        """True if a step is under way."""
        return bool(self._steps)

    def reduce(self, work: Reduce, then: Callable[[], None]) -> None:
        """Start a sum over regions, and call `then` once it is done."""
        dtype = DType(work.dtype)
        staging = _Staging(self, self._buffers.lend(), dtype, work.num_elements)
        sources = [staging.read(region) for region in work.sources]
        targets = [staging.written(region) for region in work.targets]
        self._arrays.reduce(sources, targets, dtype, Op(work.op), work.divisor)
        staging.write_back()
        self._sum_ends(staging.lent, then)

    def combine(self, work: RingReduce, then: Callable[[np.ndarray], None]) -> None:
        """Start a ring's local sum, and call `then` with it, a new (n,) array of the accumulator type."""
        dtype, op, num_elements = DType(work.dtype), Op(work.op), work.num_elements
        staging = _Staging(self, self._buffers.lend(), dtype, num_elements)
        if not work.sources:
            self._sum_ends(staging.lent, lambda: then(identity(num_elements, dtype, op)))
            return
        total = staging.lent.on_gpu(num_elements, dtype.accumulator)
        self._arrays.combine([staging.read(region) for region in work.sources], total, dtype, op)
        on_host = staging.lent.on_host(num_elements, dtype.accumulator)
        self._arrays.copy(on_host, total)
        self._sum_ends(staging.lent, lambda: then(on_host.copy()))

    def write(self, values: np.ndarray, dtype: DType, targets: Sequence[Region]) -> None:
        """Start to write a ring's result, (n,) of the storage type, into regions; see `after`."""
        lent = self._buffers.lend()
        on_host = lent.on_host(len(values), dtype.storage)
        on_host[:] = values
        for region in targets:
            self._arrays.copy(self._array_of(region, dtype, len(values)), on_host)

        def written() -> None:
            self._num_writes -= 1
            lent.give_back()

        self._num_writes += 1
        self._steps.append(_Step(self._stream.record(), written))

    def after(self, then: Callable[[], None]) -> None:
        """Call `then` once all results are where `write` puts them: at once, as a rule."""
        if self._num_writes:
            self._steps.append(_Step(None, then))
        else:
            then()

    def go_on(self) -> bool:
        """Do the steps whose events are done.

        Return whether there were any.

        Raises:
            GpuError: the GPU has failed.
        """
        has_gone_on = False
        while self._steps and ((event := self._steps[0].event) is None or event.is_done()):
            self._steps.popleft().then()
            has_gone_on = True
        return has_gone_on

    # --- within

    def _sum_ends(self, lent: Lent, then: Callable[[], None]) -> None:
        def ended() -> None:
            self._num_sums -= 1
            then()
            lent.give_back()

        self._num_sums += 1
        self._steps.append(_Step(self._stream.record(), ended))

    def copy(self, target: AnyArray, source: AnyArray) -> None:
        """Copy in the stream."""
        self._arrays.copy(target, source)

    def place(self, region: Region, dtype: DType, num_elements: int) -> tuple[AnyArray, bool]:
        """Return the elements of a region, and whether this GPU reaches them."""
        return self._array_of(region, dtype, num_elements), self._is_direct(region.device)


class _Staging:
    """Regions of one sum as this GPU reaches them: those that it does not reach go through pinned memory."""

    def __init__(self, sums: GpuSums, lent: Lent, dtype: DType, num_elements: int) -> None:
        self.lent = lent
        self._sums = sums
        self._dtype = dtype
        self._num_elements = num_elements
        self._here: dict[Region, AnyArray] = {}
        """Copy of each region on this GPU."""
        self._written: list[Region] = []

    def read(self, region: Region) -> AnyArray:
        """Return a contribution's elements, for the GPU to read."""
        place, is_direct = self._sums.place(region, self._dtype, self._num_elements)
        if is_direct:
            return place
        on_host = self._on_host()
        self._sums.copy(on_host, place)
        here = self._copy_of(region)
        self._sums.copy(here, on_host)
        return here

    def written(self, region: Region) -> AnyArray:
        """Return elements for the GPU to write the result to."""
        place, is_direct = self._sums.place(region, self._dtype, self._num_elements)
        if is_direct:
            return place
        self._written.append(region)
        return self._copy_of(region)

    def write_back(self) -> None:
        """Bring the results to the regions that this GPU does not reach."""
        for region in self._written:
            place, _ = self._sums.place(region, self._dtype, self._num_elements)
            on_host = self._on_host()
            self._sums.copy(on_host, self._here[region])
            self._sums.copy(place, on_host)

    def _copy_of(self, region: Region) -> AnyArray:
        if region not in self._here:
            self._here[region] = self.lent.on_gpu(self._num_elements, self._dtype.storage)
        return self._here[region]

    def _on_host(self) -> np.ndarray:
        self._sums.staged_bytes += self._num_elements * self._dtype.itemsize
        return self.lent.on_host(self._num_elements, self._dtype.storage)
