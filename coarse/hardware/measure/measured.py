"""Measurements of this machine, and the machine that they make."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from coarse.hardware.links import rising
from coarse.hardware.machine import Accelerator, Machine, MemoryDevice
from coarse.hardware.machine_text import annotated_text
from coarse.hardware.measure.noise import NOISY, noise_note, noise_of
from coarse.hardware.measure.pair import ADD, MULTIPLY, PING, READ, READ_OFTEN, STEP, Pair
from coarse.hardware.quantities import SizeTable
from coarse.hardware.topology_tree import HOST, Place, PlaceKind, Tree
from coarse.hardware.wire import Wire
from coarse.protocol.units import KIB, MIB

SMALLEST_BYTES, LARGEST_BYTES = 4 * KIB, 32 * MIB
_PINGS = 400
_MATRIX_SIDE = 768
_BYTES_PER_SIZE = 192 * MIB
_TOGETHER_BYTES, _TOGETHER_COPIES, _TOGETHER_ROUNDS = 4 * MIB, 8, 5
_MOST_COPIES = 40
MAX_RANKS = 64

OnStep = Callable[[float, str], None]
"""Function that is told the share that is done, and the next step."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements of one machine; seconds and bytes per second of one core unless it says otherwise."""

    latency_s: float
    push_s: SizeTable
    """Times of a copy into memory that another process has mapped, as (bytes, seconds)."""
    pull_s: SizeTable
    """Times of a copy out of such memory, which the other process has just written, as (bytes, seconds)."""
    together_bytes_per_s: float
    """Rate of two processes that copy at once, both together."""
    adder_bytes_per_s: float
    optimizer_bytes_per_s: float
    fp32_flops_per_s: float
    noise: float
    """Share of the time, in which the measuring processes could have run, that they waited for a core."""
    memory_bytes: int
    num_cores: int
    cpu: str

    @property
    def is_noisy(self) -> bool:
        """True if others used this machine so much that they lower the rates."""
        return self.noise > NOISY


def measure(pair: Pair, *, memory_bytes: int, num_cores: int, cpu: str, on_step: OnStep) -> Measurements:
    """Measure everything; a few seconds."""
    on_step(0.0, "latency of a record")
    ran_before_s, waited_before_s = pair.core_times()
    latency_s = _latency_s(pair)
    push_s, pull_s = _copies(pair, lambda share: on_step(0.05 + 0.6 * share, "copies by size"))
    on_step(0.65, "two copies at once")
    together = max(_together_bytes_per_s(pair) for _ in range(_TOGETHER_ROUNDS))
    on_step(0.75, "adder")
    adder = pair.ask(ADD)
    on_step(0.85, "optimizer")
    optimizer = pair.ask(STEP)
    on_step(0.95, "matrix product")
    flops = pair.ask(MULTIPLY, _MATRIX_SIDE)
    ran_s, waited_s = pair.core_times()
    on_step(1.0, "done")
    return Measurements(
        latency_s=latency_s,
        push_s=push_s,
        pull_s=pull_s,
        together_bytes_per_s=together,
        adder_bytes_per_s=adder,
        optimizer_bytes_per_s=optimizer,
        fp32_flops_per_s=flops,
        noise=noise_of(ran_s - ran_before_s, waited_s - waited_before_s),
        memory_bytes=memory_bytes,
        num_cores=num_cores,
        cpu=cpu,
    )


def _latency_s(pair: Pair) -> float:
    clock, trips = pair.here.clock, []
    for _ in range(_PINGS):
        began_s = clock.now_s()
        pair.ask(PING)
        trips.append(clock.now_s() - began_s)
    return median(trips) / 2


def _copies(pair: Pair, on_share: Callable[[float], None]) -> tuple[SizeTable, SizeTable]:
    """Return times of pushes and pulls of rising sizes, the fastest of several.

    Each goes through all of the region in turn.
    """
    here, clock = pair.here, pair.here.clock
    largest = min(LARGEST_BYTES, pair.nbytes // 4)
    sizes = [SMALLEST_BYTES << shift for shift in range((largest // SMALLEST_BYTES).bit_length())]
    pushes: list[tuple[int, float]] = []
    pulls: list[tuple[int, float]] = []
    here.region[:] = here.own  # every page is there before the first copy
    for done, nbytes in enumerate(sizes):
        on_share(done / len(sizes))
        push_s, pull_s = [], []
        for _ in range(max(3, min(_MOST_COPIES, _BYTES_PER_SIZE // nbytes))):
            part = here.next_range(nbytes)
            began_s = clock.now_s()
            here.region[part] = here.own[part]
            push_s.append(clock.now_s() - began_s)
            pull_s.append(pair.ask(READ, part.start, nbytes))
        pushes.append((nbytes, min(push_s)))
        pulls.append((nbytes, min(pull_s)))
    return rising(pushes), rising(pulls)


def _together_bytes_per_s(pair: Pair) -> float:
    """Return the rate of both processes that copy as much at once, one in and one out."""
    here, clock = pair.here, pair.here.clock
    nbytes, count = min(_TOGETHER_BYTES, pair.nbytes // 4), _TOGETHER_COPIES
    pair.start(READ_OFTEN, nbytes, count)
    began_s = clock.now_s()
    for _ in range(count):
        part = here.next_range(nbytes)
        here.region[part] = here.own[part]
    own_s = clock.now_s() - began_s
    return nbytes * count * (1 / own_s + 1 / pair.answer())


def machine_of(found: Measurements, name: str) -> Machine:
    """Return a node whose workers and memory devices are processes of this machine; its links are copies."""
    rate = max(nbytes / seconds for nbytes, seconds in (*found.push_s, *found.pull_s))
    port = Wire(
        name="copy",
        bytes_per_s=rate,
        latency_s=found.latency_s,
        up_table=found.push_s,
        down_table=found.pull_s,
        duplex_bytes_per_s=rate,
    )
    bus = Wire(name="memory-bus", bytes_per_s=max(rate, found.together_bytes_per_s))
    count = max(2, min(found.num_cores, MAX_RANKS))
    places = [Place(name="socket0", kind=PlaceKind.SOCKET, parent=HOST, wire=bus, crossing=bus)]
    for kind, wire in ((PlaceKind.GPU, port), (PlaceKind.MEMORY, bus)):
        places += [
            Place(name=f"{kind.value}{number}", kind=kind, parent="socket0", wire=wire) for number in range(count)
        ]
    return Machine(
        name=name,
        tree=Tree(places=tuple(places)),
        accelerator=Accelerator(
            name=_plain(found.cpu),
            memory_bytes=found.memory_bytes,
            fp32_flops_per_s=found.fp32_flops_per_s,
            fp16_flops_per_s=found.fp32_flops_per_s,
            memory_bytes_per_s=2 * rate,
        ),
        memory_device=MemoryDevice(
            adder_bytes_per_s=found.adder_bytes_per_s,
            optimizer_bytes_per_s=found.optimizer_bytes_per_s,
            capacity_bytes=max(1, found.memory_bytes // count),
        ),
        peer_to_peer=True,
    )


def _plain(text: str) -> str:
    """Return a name that a machine file can hold."""
    return re.sub(r"[^A-Za-z0-9 _.:/()+-]+", " ", text).strip(" _.:/()+-")[:100] or "CPU"


HOW = {
    ("", "peer_to_peer"): "every process has every region mapped",
    ("accelerator", "name"): "one core of it plays a worker's GPU",
    ("accelerator", "memory_bytes"): "of the whole machine",
    ("accelerator", "fp32_flop_per_s"): f"measured: float32 product of {_MATRIX_SIDE} x {_MATRIX_SIDE}, one thread",
    ("accelerator", "fp16_flop_per_s"): "assumption: a CPU is no faster in fp16",
    ("accelerator", "memory_bandwidth_bytes_per_s"): "measured: the fastest copy below reads and writes each byte",
    ("memory_device", "adder_bytes_per_s"): "measured: the sync core's sum of two float32 tensors, one core",
    ("memory_device", "optimizer_bytes_per_s"): "measured: Adam in numpy on one core, bytes of parameters",
    ("memory_device", "capacity_bytes"): "assumption: the memory, shared equally",
    ("wire copy", "bandwidth_bytes_per_s"): "measured: the fastest copy in the tables",
    ("wire copy", "latency_s"): f"measured: half of the median round trip of {_PINGS} records, two processes",
    ("wire copy", "duplex_bytes_per_s"): "assumption: one core copies both ways, one after the other",
    ("wire copy", "up_table_bytes_s"): "measured: copies into memory that another process reads; the fastest",
    ("wire copy", "down_table_bytes_s"): "measured: copies out of memory that another process wrote; the fastest",
    ("wire memory-bus", "bandwidth_bytes_per_s"): "measured: two processes copying at once, or one where that was more",
    ("wire memory-bus", "latency_s"): "the latency stands at the copy",
}
"""Way in which each value was found, by (table, key)."""


def labelled_text(machine: Machine, found: Measurements) -> str:
    """Return the machine as a file, each value with how it was found, and how quiet the machine was."""
    head = ("# This machine as `coarse profile --save` measured it: two processes, mapped memory, records.",
            "# A worker or a memory device is a process here, and a transfer is a copy.",
            f"# Noise: {noise_note(found.noise)}")  # fmt: skip
    return "\n".join((*head, annotated_text(machine, HOW)))
