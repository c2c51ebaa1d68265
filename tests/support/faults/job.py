"""A training of several workers in one process, each a coroutine: killed at any store, started again over its memory.

Faults are drawn from a seed; then they stop, and the end must come with the bits of a run without any. What differs
from `coarse run` is who calls what: the commits, the memory, the loops and the choice of a version are the product's
own.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from coarse.errors import StorageError
from coarse.faults import memory
from coarse.faults.keeping import Keeping, Place
from coarse.faults.memory import StateMemory, opened_at
from coarse.faults.parts import POSITION, VALUES, Part, PlainPart, values_part
from coarse.faults.torch.parts import part_of
from coarse.faults.torch.passes import Passes
from coarse.faults.torch.resumable import FRAMEWORK
from coarse.launch.disk_copies import DiskCopies
from coarse.launch.mpirun import JobEnd
from coarse.launch.restarts import NodeLoss
from coarse.launch.state_memory import HeldMemory
from coarse.protocol.commits import NUM_SLOTS
from coarse.protocol.place import Anywhere
from coarse.storage import state_file
from coarse.torch.groups.objects import TENSORS
from coarse.torch.own_state import generators, set_generators


class MustWait(Exception):
    """Others have not come yet; the same call is made again later."""


class Death(BaseException):
    """All processes of the job are killed now."""


class Meeting:
    """What workers of one start of the job tell one another."""

    def __init__(self, num_workers: int, *, may_be_damaged: bool) -> None:
        self.num_workers = num_workers
        self.may_be_damaged = may_be_damaged
        self.gathered: dict[tuple[str, int], dict[int, Any]] = {}
        self.told: dict[int, dict[int, int]] = {}
        """By number of the version within this start, what each worker said."""


class SimulatedPeers:
    """See Peers; a call that others have yet to match raises MustWait."""

    def __init__(self, meeting: Meeting, worker: int) -> None:
        self._meeting, self._worker = meeting, worker
        self._counts: dict[str, int] = {}
        self._num_said = 0
        self._is_open = False

    def gather(self, value: Any, name: str) -> list[Any]:
        if name == "coarse/faults/seen":
            assert not value[1] or self._meeting.may_be_damaged, f"versions {value[1]} are damaged, and nobody did that"
        count = self._counts.get(name, 0)
        values = self._meeting.gathered.setdefault((name, count), {})
        values[self._worker] = value
        if len(values) < self._meeting.num_workers:
            raise MustWait
        self._counts[name] = count + 1
        return [values[worker] for worker in range(self._meeting.num_workers)]

    def say(self, steps: int) -> None:
        self._num_said += 1
        self._is_open = True
        self._meeting.told.setdefault(self._num_said, {})[self._worker] = steps

    def said(self) -> list[int]:
        if not self._is_open:
            return []
        told = self._meeting.told[self._num_said]
        if len(told) < self._meeting.num_workers:
            raise MustWait
        self._is_open = False
        return [told[worker] for worker in range(self._meeting.num_workers)]


@dataclass
class Stores:
    """Counts stores into state memory, and kills the job at one of them."""

    left: int | None = None
    """Stores until the job dies; None while it lives on."""

    def one(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Death


class BreakingFile(state_file.StateFile):
    """A slot whose writer dies between two stores."""

    stores = Stores()

    def begin(self, data_bytes: int, layout_bytes: int) -> np.ndarray:
        self.stores.one()
        data = super().begin(data_bytes, layout_bytes)
        self.stores.one()
        return data

    def record(self, number: int, layout: bytes, sums: np.ndarray) -> None:
        self.stores.one()
        super().record(number, layout, sums)
        self.stores.one()


Script = Callable[["Worker"], Iterator[None]]


@dataclass
class Worker:
    """What a script sees: its loops, its values and its commit."""

    number: int
    local: tuple[int, ...]
    """Workers of its node."""
    make: Callable[[int], dict[str, object]]
    keeping: Keeping = field(init=False)
    passes: Passes = field(init=False)
    parts: dict[str, object] = field(init=False)
    values: dict[str, Any] = field(default_factory=dict)
    calls: int = 0
    has_own_generators: bool = False
    _generators: Any = None

    def start(self, memory: StateMemory, meeting: Meeting) -> Iterator[None]:
        """Go on from memory; yields while others have yet to come."""
        self.parts = self.make(self.number)
        alike = {p for what in self.parts.values() if isinstance(what, torch.nn.Module) for p in what.parameters()}
        shared = {id(what) for what in self.parts.values() if isinstance(what, torch.optim.Optimizer)}
        made: dict[str, Part] = {name: part_of(name, what, alike, shared) for name, what in self.parts.items()}
        self.passes = Passes(lambda _: None, is_kept=True)
        made[POSITION] = PlainPart("the place", self.passes.take, self.passes.put, TENSORS)
        made[VALUES] = values_part(self.values, TENSORS)
        place = Place(worker=self.number, num_workers=meeting.num_workers, local=self.local)
        peers = SimulatedPeers(meeting, self.number)
        self.keeping = Keeping(made, memory, peers, place, FRAMEWORK, lambda _: None)
        while True:
            with suppress(MustWait):
                self.calls, _ = self.keeping.go_on()
                return
            yield

    def commit(self) -> Iterator[None]:
        """Commit; yields while others have yet to record the version before."""
        while True:
            try:
                self.keeping.commit(self.calls + 1, self.calls + 1)
                break
            except MustWait:
                yield
        self.calls += 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job, and how it is disturbed."""

    num_workers: int
    make: Callable[[int], dict[str, object]]
    script: Script
    has_own_generators: bool = False
    """True if the script draws from the process's generators, of which each worker has its own."""
    nodes: tuple[int, ...] = ()
    """By worker its node; where there are several, one may be lost with its memory, and copies are written to disk."""

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len({*self.nodes}) or 1

    def on_node_of(self, worker: int) -> tuple[int, ...]:
        """Workers of a worker's node."""
        nodes = self.nodes or (0,) * self.num_workers
        return tuple(other for other, node in enumerate(nodes) if node == nodes[worker])


def run(
    plan: Plan, seed: int | None, *, most_deaths: int = 4, trace: list[str] | None = None
) -> tuple[str, list[str]]:
    """Run a job to its end; return the digest of what its workers have then, and `trace`, what was done to it.

    Raises:
        StorageError: nothing was left to go on from.
    """
    memory.StateFile = BreakingFile  # type: ignore[misc]
    chance = random.Random(seed)
    deaths_left = 0 if seed is None else chance.randint(1, most_deaths)
    trace = [] if trace is None else trace
    with HeldMemory([Anywhere()] * plan.num_workers) as held, ExitStack() as opened:
        opened.callback(setattr, memory, "StateFile", state_file.StateFile)
        copies = None
        if plan.num_nodes > 1 and seed is not None:
            copies = DiskCopies(Path(opened.enter_context(TemporaryDirectory(dir="/dev/shm"))))
        while True:
            workers = [Worker(number, plan.on_node_of(number), plan.make) for number in range(plan.num_workers)]
            death = chance.randint(0, 24 * plan.num_workers) if deaths_left else None
            meeting = Meeting(plan.num_workers, may_be_damaged=is_storage_error_due(trace))
            try:
                return _until_the_end(plan, workers, held, copies, chance, death, meeting), trace
            except Death:
                deaths_left -= 1
                trace.append("death at " + ", ".join(f"{worker.calls}" for worker in workers))
                trace += _damage(held, chance)
                if copies is not None:
                    trace += _lose_node(plan, held, copies, chance)


def _lose_node(plan: Plan, held: HeldMemory, copies: DiskCopies, chance: random.Random) -> list[str]:
    """Perhaps lose a node with its memory, as the launcher does; a StorageError where there is no copy yet."""
    if chance.random() < 0.6:
        return []
    node = chance.choice(sorted({*plan.nodes}))
    lost = tuple(worker for worker, each in enumerate(plan.nodes) if each == node)
    ended = JobEnd(
        status=137, said="", was_asked=False, failure=None, noticed_s=0.0, ended_s=0.0, lost_nodes=(f"node{node}",),
        lost_workers=lost,
    )  # fmt: skip
    try:
        return [f"node {node} lost{NodeLoss(held, copies, plan.num_workers).on_lost(ended)}"]
    except StorageError:
        assert not copies.version, "there was a copy"
        held.lose(range(plan.num_workers))
        return [f"node {node} lost, and there was no copy: the job begins anew"]


def _until_the_end(
    plan: Plan, workers: list[Worker], held: HeldMemory, copies: DiskCopies | None, chance: random.Random,
    death: int | None, meeting: Meeting,
) -> str:  # fmt: skip
    """Take turns as `chance` says until all scripts have ended; `death` stores away all are killed."""
    BreakingFile.stores.left = death
    paths = [[f"/proc/self/fd/{fd}" for fd in held.slots_of_worker(worker.number)] for worker in workers]
    memories = [StateMemory(opened_at(paths), worker.number) for worker in workers]

    def life(worker: Worker) -> Iterator[None]:
        torch.manual_seed(worker.number)
        yield from worker.start(memories[worker.number], meeting)
        yield from plan.script(worker)

    try:
        _take_turns(plan, {worker.number: life(worker) for worker in workers}, held, copies, chance)
    finally:
        for each in memories:
            each.close()
    BreakingFile.stores.left = None
    return digest(workers)


def _take_turns(
    plan: Plan, lives: dict[int, Iterator[None]], held: HeldMemory, copies: DiskCopies | None, chance: random.Random
) -> None:
    """Have each worker go on to its next point, as `chance` says, until all scripts have ended; now and then the
    launcher writes a copy to disk."""
    states: dict[int, Any] = {}
    while lives:
        number = chance.choice([*lives])
        if plan.has_own_generators and number in states:
            set_generators(states[number])
        try:
            next(lives[number])
        except StopIteration:
            del lives[number]
        if plan.has_own_generators:
            states[number] = generators()
        if copies is not None and chance.random() < 0.05:
            copies.write(held)


def _damage(held: HeldMemory, chance: random.Random) -> list[str]:
    """Perhaps change a byte of a slot, now and then."""
    if chance.random() < 0.8:
        return []
    descriptors = [fd for slot in range(NUM_SLOTS) for fd in held.slots_of(slot)]
    descriptor = chance.choice(descriptors)
    if not (nbytes := os.fstat(descriptor).st_size):
        return []
    at = chance.choice([chance.randrange(nbytes), chance.randrange(min(nbytes, 4500))])
    (before,) = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([before ^ chance.randint(1, 255)]), at)
    return [f"damage of slot {descriptors.index(descriptor)} at {at}"]


def digest(workers: list[Worker]) -> str:
    """Of all that the workers have."""
    found = hashlib.sha256()
    for worker in workers:
        for name, what in worker.parts.items():
            if isinstance(what, torch.nn.Module):
                for tensor in what.state_dict().values():
                    found.update(tensor.detach().view(-1).view(torch.uint8).numpy().tobytes())
            else:
                found.update(name.encode())
        found.update(repr(worker.values).encode())
    return found.hexdigest()


def is_storage_error_due(trace: list[str]) -> bool:
    """Whether a job may have lost all versions: only where bytes were changed."""
    return any(line.startswith("damage") for line in trace)


__all__ = ["BreakingFile", "Death", "MustWait", "Plan", "StorageError", "Worker", "run"]
