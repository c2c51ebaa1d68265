# Pure: no MPI, threads, clock or environment.
"""Measurements of a memory device, and the machine file that they make of another machine."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from coarse.errors import ConfigError
from coarse.hardware.coherence import SNOOP_OVER_LINE, Coherence
from coarse.hardware.machine import Machine, MemoryDevice
from coarse.hardware.machine_text import annotated_text
from coarse.hardware.measure.noise import emulation_note, noise_note
from coarse.hardware.topology_tree import PlaceKind, Tree
from coarse.hardware.wire import Wire
from coarse.protocol.units import GIB, LINE_BYTES

_RISE = 0.02
"""Least part by which a rate counts as risen."""
GB, NS = 1e9, 1e-9


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Spread of repeated runs: the median, the lowest and the highest."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median of some runs, the lowest and the highest."""
    return Spread(median=median(values), low=min(values), high=max(values))


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Bytes per second of so many processes together, each in a separate part."""

    num_processes: int
    load: Spread
    store: Spread
    copy: Spread
    """Bytes that are copied: each is read and written."""


@dataclass(frozen=True, kw_only=True)
class Flushes:
    """Costs of keeping bytes out of caches, for memory that hosts share without coherence."""

    write_back: str
    """Instruction that writes a line to memory."""
    evicting: str
    """Instruction that removes a line from the caches."""
    line_s: Spread
    """Seconds until one written line is in memory."""
    store_bytes_per_s: Spread
    """Rate of one process, each line flushed behind its stores."""
    load_bytes_per_s: Spread
    """Rate of one process, each line removed from the caches before it is loaded."""


@dataclass(frozen=True, kw_only=True)
class MemoryMeasurements:
    """Measurements of one memory device."""

    place: str
    """Name of the device, such as "dax:/dev/dax0.0"."""
    cpu: str
    latency_s: Spread
    streams: tuple[Streams, ...]
    """Rates of streams, by rising numbers of processes."""
    flushes: Flushes | None
    """Costs of flushes; None if the processor flushes no lines."""
    adder_bytes_per_s: Spread
    optimizer_bytes_per_s: Spread
    capacity_bytes: int
    measured_bytes: int
    cache_bytes: int
    """Bytes of all last-level caches; 0 if they are unknown."""
    num_repeats: int
    noise: float
    """Share of the time, in which the measuring processes could have run, that they waited for a core."""

    @property
    def alone(self) -> Streams:
        """Streams of one process."""
        return self.streams[0]

    def fastest(self, kind: str) -> Streams:
        """Return the streams with the highest median of "load", "store" or "copy".

        They are those of the fewest processes, if several have it.
        """
        return max(self.streams, key=lambda each: (rate_of(each, kind).median, -each.num_processes))

    def outstanding_bytes(self, rate: Spread) -> int:
        """Return the bytes under way at a rate until they are answered, in whole cache lines (Little's law)."""
        num_lines = round(rate.median * self.latency_s.median / LINE_BYTES, 6)  # a product is seldom whole to the bit
        return max(1, math.ceil(num_lines)) * LINE_BYTES


def rate_of(streams: Streams, kind: str) -> Spread:
    """Return the rate of "load", "store" or "copy"."""
    found: Spread = getattr(streams, kind)
    return found


def process_counts(most: int) -> tuple[int, ...]:
    """Return numbers of processes to try: 1 to 4, then in steps of a half and a third, and the most."""
    counts = [count for count in (1, 2, 3, 4) if count <= most]
    while counts[-1] < most:
        grown = counts[-1] + counts[-1] // (2 if len(counts) % 2 == 0 else 3)
        counts.append(min(grown, most))
    return tuple(counts)


def still_rises(streams: Sequence[Streams]) -> bool:
    """Return whether the last number of processes loads, stores or copies more than every smaller one."""
    if len(streams) < 2:
        return True
    *before, last = streams
    return any(
        rate_of(last, kind).median > (1 + _RISE) * max(rate_of(each, kind).median for each in before)
        for kind in ("load", "store", "copy")
    )


def require_memory_devices(base: Machine) -> None:
    """Raise ConfigError unless a machine has memory devices, which the measured one can replace."""
    if not base.tree.memories:
        raise ConfigError(
            f"machine {base.name} has no [[memory]] in whose place the measured device could come; take a base that "
            "has, such as cxl-type3-asic",
            key="base",
        )


def calibrated_machine(found: MemoryMeasurements, base: Machine, name: str) -> Machine:
    """Return the base machine with each of its memory devices as the measured one.

    Raises:
        ConfigError: it has none.
    """
    require_memory_devices(base)
    load, store = (rate_of(found.fastest(kind), kind) for kind in ("load", "store"))
    slower = min(load, store, key=lambda rate: rate.median)
    taken = {place.wire.name for place in base.tree.places if place.kind is not PlaceKind.MEMORY}
    taken |= {cable.wire.name for cable in base.nvlinks} | ({base.network.name} if base.network else set())
    port = Wire(
        name=_unused("device-port", taken),
        bytes_per_s=slower.median,
        latency_s=found.latency_s.median,
        duplex_bytes_per_s=min(2 * rate_of(found.fastest("copy"), "copy").median, 2 * slower.median),
        outstanding_bytes=found.outstanding_bytes(slower),
    )
    cci = Wire(name=_unused("cci", taken), bytes_per_s=slower.median, latency_s=found.latency_s.median)
    places = tuple(
        replace(place, wire=port) if place.kind is PlaceKind.MEMORY else place for place in base.tree.places
    )
    return replace(
        base,
        name=name,
        tree=Tree(places=places),
        cci_wire=cci if base.cci_wire is not None else None,
        memory_device=MemoryDevice(
            adder_bytes_per_s=found.adder_bytes_per_s.median,
            optimizer_bytes_per_s=found.optimizer_bytes_per_s.median,
            capacity_bytes=found.capacity_bytes,
        ),
        coherence=Coherence(
            load_bytes_per_s=found.alone.load.median,
            store_bytes_per_s=found.alone.store.median,
            latency_s=found.latency_s.median,
            sharer_growth=base.coherence.sharer_growth if base.coherence else SNOOP_OVER_LINE,
            load_outstanding_bytes=found.outstanding_bytes(found.alone.load),
            store_outstanding_bytes=found.outstanding_bytes(found.alone.store),
        ),
    )


def calibrated_text(found: MemoryMeasurements, base: Machine, name: str) -> str:
    """Return the machine as a file: how each value was found, the intervals of its runs, and other facts.

    The other facts are those that no field can hold.
    """
    machine = calibrated_machine(found, base, name)
    port = next(place.wire.name for place in machine.tree.places if place.kind is PlaceKind.MEMORY)
    rows = _notes(found, port, machine.cci_wire.name if machine.cci_wire else "")
    lines = (*_head(found, base), annotated_text(machine, rows), *_intervals(found, machine, port))
    return "".join(f"{line}\n" for line in lines)


def _intervals(found: MemoryMeasurements, machine: Machine, port: str) -> Iterator[str]:
    """Yield the intervals that predictions vary: from the lowest to the highest of repeated runs."""
    spreads = {
        "coherence.load_bytes_per_s": found.alone.load,
        "coherence.store_bytes_per_s": found.alone.store,
        "coherence.latency_s": found.latency_s,
        f"wire.{port}.bandwidth_bytes_per_s": min(
            (rate_of(found.fastest(kind), kind) for kind in ("load", "store")), key=lambda rate: rate.median
        ),
        f"wire.{port}.latency_s": found.latency_s,
        "memory_device.adder_bytes_per_s": found.adder_bytes_per_s,
        "memory_device.optimizer_bytes_per_s": found.optimizer_bytes_per_s,
    }
    yield "[intervals]"
    for field, spread in spreads.items():
        yield f'"{field}" = [{spread.low!r}, {spread.high!r}]'


def _head(found: MemoryMeasurements, base: Machine) -> Iterator[str]:
    yield f"# {found.place} as `coarse calibrate` measured it with {found.cpu}:"
    yield f"# medians of {found.num_repeats} runs, and from the lowest to the highest."
    yield f"# What says \"measured\" was measured here; the host around it is that of {base.name}, as assumed there."
    caches = f"{found.cache_bytes / GIB:.2f} GiB" if found.cache_bytes else "of an unknown size"
    yield f"# In {found.measured_bytes / GIB:.2f} GiB of the device; last-level caches: {caches}."
    if note := emulation_note(found.cpu):
        yield f"# Emulated: {note}."
    yield f"# Noise: {noise_note(found.noise)}"
    for each in found.streams:
        kinds = ", ".join(f"{kind} {rate_text(rate_of(each, kind))}" for kind in ("load", "store", "copy"))
        yield f"# Streams of {each.num_processes} processes together, measured: {kinds}."
    if (flushes := found.flushes) is None:
        yield "# Flushes: not measured, for this processor flushes no lines."
        return
    yield f"# A written line until it is in memory ({flushes.write_back}), measured: {time_text(flushes.line_s)}."
    yield f"# Stores with {flushes.write_back}, one process, measured: {rate_text(flushes.store_bytes_per_s)}."
    yield f"# Loads after {flushes.evicting}, one process, measured: {rate_text(flushes.load_bytes_per_s)}."
    yield "# Hosts that share the device without coherence get these rates; write them into [coherence] for that."


def _notes(found: MemoryMeasurements, port: str, cci: str) -> dict[tuple[str, str], str]:
    """Return the way in which each value was found, by (table, key)."""
    load, store, copy = (found.fastest(kind) for kind in ("load", "store", "copy"))
    latency = f"measured: loads that wait for one another, {time_text(found.latency_s)}"
    both = f"loads {rate_text(load.load)} of {load.num_processes}, stores {rate_text(store.store)} of "
    little = "measured: the rate times the latency, in lines of 64 bytes"
    slower = f"measured: the slower of {both}{store.num_processes} processes"
    return {
        ("memory_device", "adder_bytes_per_s"):
            f"measured: a sync core's sum in it, {rate_text(found.adder_bytes_per_s)}",
        ("memory_device", "optimizer_bytes_per_s"):
            f"measured: Adam in numpy in it, parameters, {rate_text(found.optimizer_bytes_per_s)}",
        ("memory_device", "capacity_bytes"): "what the system says that it has",
        ("coherence", "load_bytes_per_s"): f"measured: one process, {rate_text(found.alone.load)}",
        ("coherence", "store_bytes_per_s"): f"measured: one process, {rate_text(found.alone.store)}",
        ("coherence", "latency_s"): latency,
        ("coherence", "sharer_growth"): "assumption",
        ("coherence", "load_outstanding_bytes"): little,
        ("coherence", "store_outstanding_bytes"): little,
        (f"wire {port}", "bandwidth_bytes_per_s"): slower,
        (f"wire {port}", "latency_s"): latency,
        (f"wire {port}", "outstanding_bytes"): little,
        (f"wire {port}", "duplex_bytes_per_s"):
            f"measured: a copy reads and writes {rate_text(copy.copy)} of {copy.num_processes} processes",
        (f"wire {cci}", "bandwidth_bytes_per_s"): "assumption: no faster than the memory",
        (f"wire {cci}", "latency_s"): "assumption: as the memory",
    }  # fmt: skip


def rate_text(rate: Spread) -> str:
    """Return a rate as text, such as "20.1 GB/s (19.8 to 20.3)"."""
    return f"{rate.median / GB:.3g} GB/s ({rate.low / GB:.3g} to {rate.high / GB:.3g})"


def time_text(seconds: Spread) -> str:
    """Return a time as text, such as "121 ns (118 to 130)"."""
    return f"{seconds.median / NS:.4g} ns ({seconds.low / NS:.4g} to {seconds.high / NS:.4g})"


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, or one like it that no other wire has."""
    while name in taken:
        name = f"measured-{name}"
    return name
