"""Measurement of a memory device by processes that have it mapped as those of a job do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.measure.calibrated import (
    Flushes,
    MemoryMeasurements,
    Spread,
    Streams,
    process_counts,
    spread_of,
    still_rises,
)
from coarse.hardware.measure.measured import OnStep
from coarse.hardware.measure.memory_probe import COPY, LOAD, LOAD_FLUSHED, STORE, STORE_FLUSHED
from coarse.hardware.measure.native import Native
from coarse.hardware.measure.noise import noise_of
from coarse.hardware.measure.pair import (
    ADD_THERE,
    CHASE,
    ENTER,
    FLUSH,
    LAY,
    NS_PER_S,
    STEP_THERE,
    STREAM,
    Pair,
    core_times,
)
from coarse.protocol.clock import Clock
from coarse.protocol.units import MIB
from coarse.storage.region import DeviceMemory, MemoryFile

LEAST_BYTES = 64 * MIB
"""Least bytes of the range that is measured, for caches that are small or unknown."""
_CACHES, _FEWEST_CACHES = 4, 2
"""Size of the range over that of all last-level caches, and the least that this may be."""
_LATENCY_SHARE, _STREAM_SHARE, _FLUSH_SHARE, _KERNEL_SHARE = 0.15, 0.45, 0.15, 0.1
"""Shares of the time there is; the rest goes to preparing the memory. The last is for adder and optimizer each."""
_UNIT_BYTES = 2 * MIB
_LEAST_WINDOW_S, _MOST_WINDOW_S = 0.02, 0.3
_FEWEST_REPEATS = 2
_SEEN_BYTES = 16 * MIB


def range_bytes(
    capacity_bytes: int, cache_bytes: int, wanted_bytes: int | None, room_bytes: int, align_bytes: int = _UNIT_BYTES
) -> int:
    """Return how much of a device to measure: several times the caches, in whole units.

    A unit is 2 MiB, or the device's alignment.

    Raises:
        CapacityError: the device, the wish or the memory that the machine has left is less than caches let be measured.
    """
    fewest = max(LEAST_BYTES, _FEWEST_CACHES * cache_bytes)
    usual = max(LEAST_BYTES, _CACHES * cache_bytes)
    unit_bytes = max(_UNIT_BYTES, align_bytes)
    rounded = -(-(wanted_bytes or usual) // unit_bytes) * unit_bytes
    nbytes = min(rounded, capacity_bytes // unit_bytes * unit_bytes, room_bytes // unit_bytes * unit_bytes)
    if nbytes < fewest:
        why = f"the device has {capacity_bytes}, {room_bytes} are left"
        why += f" and --size-mib asks for {wanted_bytes}" if wanted_bytes else ""
        raise CapacityError(
            f"measuring wants at least {fewest} bytes, {_FEWEST_CACHES} times the last-level caches ({cache_bytes} "
            f"bytes) and {LEAST_BYTES}, or caches would answer; {why}; take a larger one, or fewer cores (taskset)"
        )
    return nbytes


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Subject of a measurement, and its limits."""

    place: str
    file: MemoryFile
    """Open file of the device; it may be longer than the device has room."""
    capacity_bytes: int
    measured_bytes: int
    cache_bytes: int
    num_processes: int
    """Most processes that measure."""
    repeats: int
    seconds: float
    """Approximate seconds that it may take."""
    cpu: str
    flags: frozenset[str]


class MemoryRange:
    """Range as this process sees it: refused if it holds something, zero when it is closed."""

    def __init__(self, subject: Subject, *, overwrite: bool) -> None:
        self._file = replace(subject.file, capacity_bytes=subject.measured_bytes)
        self._memory = DeviceMemory(
            self._file.descriptor, subject.measured_bytes, subject.file.source, subject.file.begin_bytes
        )
        if refusal := self._memory.reserve(0, subject.measured_bytes):
            raise CapacityError(f"{subject.place}: {refusal}; lower --size-mib, or end other programs")
        if not overwrite and any(part.any() for part in self._parts()):
            raise ConfigError(
                f"{subject.place} holds something, which measuring would overwrite; give --overwrite if its "
                "bytes are needed no longer, or name another",
                key="overwrite",
            )

    @property
    def file(self) -> MemoryFile:
        """File of the device, no longer than the range."""
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for part in self._parts():
            part[:] = 0  # so that it may be measured again, and tells nothing

    def _parts(self) -> Iterator[np.ndarray]:
        """Return the parts of the range, (n,) uint8 each."""
        nbytes = self._file.capacity_bytes
        return (
            self._memory.view(begin, min(_SEEN_BYTES, nbytes - begin)) for begin in range(0, nbytes, _SEEN_BYTES)
        )


class MemoryMeasurement:
    """Measurement with one process or several that it starts; `with` ends them."""

    def __init__(self, subject: Subject, file: MemoryFile, clock: Clock, on_step: OnStep) -> None:
        self._subject = subject
        self._file = file
        self._clock = clock
        self._on_step = on_step
        self._pairs: list[Pair] = []
        self._native = Native(subject.flags)

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._stack = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def measure(self) -> MemoryMeasurements:
        """Measure everything, one after the other."""
        subject = self._subject
        latency_s = self._latency_s()
        streams = tuple(self._streams())
        self._grow(1)
        flushes = self._flushes()
        adder = self._often(0.8, "adder", _KERNEL_SHARE, lambda: self._pairs[0].ask(ADD_THERE))
        optimizer = self._often(0.9, "optimizer", _KERNEL_SHARE, lambda: self._pairs[0].ask(STEP_THERE))
        ran_s, waited_s = core_times({number for pair in self._pairs for number in pair.process_ids})
        self._on_step(1.0, "done")
        return MemoryMeasurements(
            place=subject.place,
            cpu=subject.cpu,
            latency_s=latency_s,
            streams=streams,
            flushes=flushes,
            adder_bytes_per_s=adder,
            optimizer_bytes_per_s=optimizer,
            capacity_bytes=subject.capacity_bytes,
            measured_bytes=subject.measured_bytes,
            cache_bytes=subject.cache_bytes,
            num_repeats=subject.repeats,
            noise=noise_of(ran_s, waited_s),
        )

    def _latency_s(self) -> Spread:
        self._on_step(0.0, "latency: prepare")
        self._grow(1)
        self._pairs[0].ask(LAY)
        window_ns = self._window_ns(_LATENCY_SHARE, 1)
        self._pairs[0].ask(CHASE, window_ns)  # the first run only finds the page tables
        return self._often(0.1, "latency", _LATENCY_SHARE, lambda: self._pairs[0].ask(CHASE, window_ns))

    def _streams(self) -> Iterator[Streams]:
        """Yield the rates of rising numbers of processes until no rate rises any more."""
        counts = process_counts(self._subject.num_processes)
        window_ns = self._window_ns(_STREAM_SHARE, 3 * len(counts))
        found: list[Streams] = []
        for done, count in enumerate(counts):
            self._grow(count)
            for kind in (LOAD, STORE, COPY):
                self._together(kind, window_ns)  # the first run only warms up
            share = 0.2 + 0.45 * done / len(counts)
            load, store, copy = (
                self._often(
                    share,
                    f"streams of {count}",
                    _STREAM_SHARE / len(counts) / 3,
                    lambda kind=kind: self._together(kind, window_ns),  # type: ignore[misc]
                )
                for kind in (LOAD, STORE, COPY)
            )
            found.append(Streams(num_processes=count, load=load, store=store, copy=copy))
            yield found[-1]
            if not still_rises(found):
                return

    def _flushes(self) -> Flushes | None:
        write_back, evicting = self._native.write_back, self._native.evicting
        if write_back is None or evicting is None:
            return None
        one, share = self._pairs[0], _FLUSH_SHARE / 3
        window_ns = self._window_ns(_FLUSH_SHARE, 3)
        for kind in (STORE_FLUSHED, LOAD_FLUSHED):
            one.ask(STREAM, kind, window_ns)
        return Flushes(
            write_back=write_back,
            evicting=evicting,
            line_s=self._often(0.65, "flush of a line", share, lambda: one.ask(FLUSH)),
            store_bytes_per_s=self._often(
                0.7, "stores with flushes", share, lambda: one.ask(STREAM, STORE_FLUSHED, window_ns)
            ),
            load_bytes_per_s=self._often(
                0.75, "loads with flushes", share, lambda: one.ask(STREAM, LOAD_FLUSHED, window_ns)
            ),
        )

    def _grow(self, count: int) -> None:
        """Have so many processes at least, and give each of the first so many its part of the range."""
        while len(self._pairs) < count:
            self._pairs.append(self._stack.enter_context(Pair(self._file)))
        for index, pair in enumerate(self._pairs[:count]):
            pair.start(ENTER, index, count)
        for pair in self._pairs[:count]:
            pair.answer()
        self._active = self._pairs[:count]

    def _together(self, kind: int, window_ns: int) -> float:
        """Return the bytes per second of all active processes in the same window."""
        for pair in self._active:
            pair.start(STREAM, kind, window_ns)
        return sum(pair.answer() for pair in self._active)

    def _often(self, at: float, what: str, share: float, run: Callable[[], float]) -> Spread:
        """Return the spread of some runs: as many as were asked for, or fewer within their share of the time."""
        until_s = self._clock.now_s() + 2 * share * self._subject.seconds
        values: list[float] = []
        while len(values) < self._subject.repeats:
            self._on_step(at, what)
            values.append(run())
            if self._clock.now_s() > until_s and len(values) >= _FEWEST_REPEATS:
                break
        return spread_of(values)

    def _window_ns(self, share: float, num_kinds: int) -> int:
        """Return how long a run may take if so many kinds of runs share a share of the time.

        One more run warms up.
        """
        seconds = share * self._subject.seconds / num_kinds / (self._subject.repeats + 1)
        return round(min(max(seconds, _LEAST_WINDOW_S), _MOST_WINDOW_S) * NS_PER_S)


def measure_memory(subject: Subject, *, overwrite: bool, clock: Clock, on_step: OnStep) -> MemoryMeasurements:
    """Measure a device and leave the range that was used zero.

    Raises:
        ConfigError: it holds something.
        CapacityError: it has not the pages that are measured.
        MeasurementError: this processor or kernel does not allow it.
    """
    Native(subject.flags)  # refused before any byte changes
    with (
        MemoryRange(subject, overwrite=overwrite) as used,
        MemoryMeasurement(subject, used.file, clock, on_step) as measurement,
    ):
        return measurement.measure()
