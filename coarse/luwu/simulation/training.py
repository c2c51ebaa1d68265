# Pure: no MPI, threads, clock or environment.
"""Training in the network in virtual time: the optimizer node's machine, over timed disks and links.

The PagedOptimizer and the queues that serve live workers decide on all reads, updates and writes, and on their order.
All workers do the same at the same time, so one stands for them. The switch adds and copies, so that a block crosses
the optimizer node's link once each way, for any number of workers.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from coarse.luwu.costs import COSTS
from coarse.luwu.simulation.cluster import PagedCluster, Trained
from coarse.luwu.store.commit import Commit, UnitVersion
from coarse.luwu.store.instructions import (
    AddSum,
    Consumed,
    Instruction,
    Offer,
    Prepared,
    ReadImage,
    ReadPulled,
    Sync,
    Update,
    WriteImage,
)
from coarse.luwu.store.layout import DiskLayout
from coarse.luwu.store.operations import GRADIENTS, EndPass, Freeze, Operation, OperationLog, Pull, Push, Step
from coarse.luwu.store.optimizer import PagedOptimizer, Rules
from coarse.luwu.store.queues import FolderQueues, Priority
from coarse.protocol.costs import cost_of
from coarse.simulation.engine import Engine

DEPTH = 4
"""Number of reads and writes of one disk that run at once."""
BLOCKS_HELD = 2
"""Number of blocks that a worker has parameters of, and of blocks whose gradients wait to leave."""
_BUFFERS_PER_DISK = 4
_SETTINGS = json.dumps([{"lr": 1e-3}])
_WARM_UP_STEPS = 2
LEAST_STEPS = _WARM_UP_STEPS + 1
NUM_STEPS = 5
"""Number of steps of a simulation by default."""
DiskWork = ReadPulled | ReadImage | WriteImage
_PRIORITIES = {
    ReadPulled: Priority.READ_PARAMETERS, ReadImage: Priority.READ_STATES, WriteImage: Priority.WRITE_STATES,
}  # fmt: skip


@dataclass(frozen=True)
class StepTimes:
    """Times of a step once all is under way (kind: simulated)."""

    step_s: float
    compute_s: float
    """Seconds of the step in which each worker computed."""
    ends_s: tuple[float, ...] = ()
    """Seconds at which each step had ended, for all that were simulated."""


class LinkChange(NamedTuple):
    """Change of workers' links to another rate in one direction, from a second of the training on."""

    at_s: float
    direction: str
    """Either "up" or "down"."""
    bytes_per_s: float


class SimulatedTraining:
    """Training that runs step after step."""

    def __init__(
        self, cluster: PagedCluster, training: Trained, num_steps: int, paces: Sequence[float] = (),
        changes: Sequence[LinkChange] = (),
    ) -> None:  # fmt: skip
        """Prepare the training; `paces` has by step the factor by which the slowest worker computes longer."""
        self._cluster, self._training = cluster, training
        self._num_steps = num_steps
        self._paces = paces or (1.0,) * num_steps
        self._link_bytes_per_s = {"up": cluster.link_bytes_per_s, "down": cluster.link_bytes_per_s}
        model = self._model = training.model()
        self._layout = DiskLayout(model, 0, cluster.num_disks)
        self._num_chunks = [model.num_chunks(block) for block in range(training.num_blocks)]
        sums_bytes = accumulate(4 * training.elements(block) for block in range(training.num_blocks))
        num_in_memory = sum(nbytes <= cluster.sums_bytes for nbytes in sums_bytes)
        versions = tuple(UnitVersion(0, 0, (0,)) for _ in model.units)
        self._optimizer = PagedOptimizer(
            model, 0, Rules(in_backward=True), num_buffers=_BUFFERS_PER_DISK * cluster.num_disks,
            num_window=BLOCKS_HELD * max(self._num_chunks),
            in_memory=range(num_in_memory),
            resumed=Commit(sequence=0, run="", step=0, units=versions, workers=(b"",)),
        )  # fmt: skip
        self._log = OperationLog(1)
        self._folder_of = {chunk: self._layout.place(*chunk, 0).folder for chunk in self._layout.chunks()}
        self._queues: list[FolderQueues[DiskWork]] = [FolderQueues(DEPTH) for _ in range(cluster.num_disks)]
        self._took_s: dict[tuple[type, int, int], float] = {}
        """Seconds of a disk's or the kernel's work, by kind, unit and chunk."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            ReadPulled: self._queue, ReadImage: self._queue, WriteImage: self._queue, AddSum: self._add,
            Update: self._update, Offer: self._offer, Consumed: self._consumed, Sync: self._done,
            Prepared: self._prepared,
        }  # fmt: skip
        self._engine = Engine([])
        for change in changes:
            self._engine.at(change.at_s, partial(self._change, change))
        self._order = [*range(training.num_blocks), *reversed(range(training.num_blocks))]
        self._chunks_ahead = 0
        """Chunks that were pulled, of blocks that were not computed; they may be fewer than those of the next block."""
        self._num_pulled = self._num_computed = 0
        """Numbers of blocks, over all steps."""
        self._is_computing = False
        self._is_settled = False
        """True if the worker has gone on as far as it can with the blocks that are there."""
        self._leaving: deque[int] = deque()
        """Number of chunks left of each push that is not consumed."""
        self._num_pushes = 0
        self.step_ends_s: list[float] = []

    def run(self) -> StepTimes:
        """Run until all steps are made; the last ones count."""
        self._go_on()
        self._engine.run()
        ends = self.step_ends_s
        assert len(ends) == self._num_steps, "the training stands still"
        step_s = (ends[-1] - ends[_WARM_UP_STEPS - 1]) / (self._num_steps - _WARM_UP_STEPS)
        return StepTimes(step_s, self._training.compute_s(self._cluster), tuple(ends))

    def _change(self, change: LinkChange) -> None:
        """Change the rate of transfers that begin from now on."""
        self._link_bytes_per_s[change.direction] = change.bytes_per_s

    # --- the worker

    def _go_on(self) -> None:
        """Pull ahead, and compute what is there, where something has changed for the worker."""
        if self._is_settled:
            return
        self._is_settled = True
        while self._num_pulled < min(self._num_computed + BLOCKS_HELD, len(self._order) * self._num_steps):
            place = self._num_pulled % len(self._order)
            self._ask(Pull(self._order[place]))
            if place >= self._training.num_blocks:
                self._move_input("down")
            self._num_pulled += 1
        place = self._num_computed % len(self._order)
        unit = self._order[place]
        is_there = self._chunks_ahead >= self._num_chunks[unit]
        if self._is_computing or not is_there or len(self._leaving) >= BLOCKS_HELD:
            return
        is_backward = place >= self._training.num_blocks
        took_s = (self._training.backward_s if is_backward else self._training.forward_s)(self._cluster, unit)
        took_s *= self._paces[self._num_computed // len(self._order)]
        self._is_computing = True
        self._chunks_ahead -= self._num_chunks[unit]
        self._engine.work("worker", took_s, partial(self._computed, place, is_backward=is_backward))

    def _computed(self, place: int, *, is_backward: bool) -> None:
        self._is_computing = self._is_settled = False
        self._num_computed += 1
        if is_backward:
            self._push(place)
        else:
            self._move_input("up")
        self._go_on()

    def _push(self, place: int) -> None:
        """Send a block's gradients, and ask for the step after the last ones."""
        if place == self._training.num_blocks:
            self._ask(Freeze(_SETTINGS, 1))
        unit = self._order[place]
        push = self._num_pushes
        self._num_pushes += 1
        self._ask(Push(unit, GRADIENTS, True), present=1)
        self._leaving.append(self._num_chunks[unit])
        for chunk, (begin, end) in enumerate(self._model.chunks(unit)):
            took_s = 2 * (end - begin) / self._link_bytes_per_s["up"]
            self._engine.work("up", took_s, partial(self._arrived, push, chunk))
        if place == len(self._order) - 1:
            step = len(self.step_ends_s) + 1
            self._ask(EndPass())
            self._ask(Step(step, _SETTINGS, 1.0, 1))
            self.step_ends_s.append(self._engine.now_s)

    def _move_input(self, direction: str) -> None:
        """Move a block's input to the host, or back beside its parameters; only the bus is kept busy by it."""
        if self._training.input_bytes:
            took_s = self._training.input_bytes / self._link_bytes_per_s[direction]
            self._engine.work(direction, took_s, _nothing)

    def _ask(self, operation: Operation, present: int = 0) -> None:
        asked, is_first = self._log.on_asked(0, operation, present)
        self._carry(self._optimizer.on_asked(asked, is_first=is_first))

    # --- the optimizer node

    def _carry(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            self._handlers[type(one)](one)

    def _queue(self, one: DiskWork) -> None:
        folder = self._folder_of[one.unit, one.chunk]
        self._queues[folder].put(_PRIORITIES[type(one)], one)
        self._begin(folder)

    def _add(self, one: AddSum) -> None:
        self._carry(self._optimizer.on_added(one, 0.0))

    def _update(self, one: Update) -> None:
        self._engine.work("kernel", self._seconds(one, self._cluster.updates_per_s), partial(self._ended, one))

    def _offer(self, one: Offer) -> None:
        begin, end = self._model.elements(one.unit, one.chunk)
        took_s = 2 * (end - begin) / self._link_bytes_per_s["down"]
        self._engine.work("down", took_s, partial(self._pulled, one.number))

    def _consumed(self, _: Consumed) -> None:
        self._leaving[0] -= 1
        if not self._leaving[0]:
            self._leaving.popleft()
            self._is_settled = False

    def _prepared(self, _: Prepared) -> None:
        self._carry(self._optimizer.on_committed())

    def _seconds(self, one: DiskWork | Update, amounts_per_s: float) -> float:
        """Return the seconds of an instruction; all of its kind take them with the same chunk."""
        key = type(one), one.unit, one.chunk
        took_s = self._took_s.get(key)
        if took_s is None:
            took_s = self._took_s[key] = cost_of(COSTS, one, self._model).amount / amounts_per_s
        return took_s

    def _done(self, one: Instruction) -> None:
        self._carry(self._optimizer.on_done(one))

    def _begin(self, folder: int) -> None:
        for one in self._queues[folder].start():
            took_s = self._seconds(one, self._cluster.disk_bytes_per_s)
            self._engine.work((folder, type(one) is WriteImage), took_s, partial(self._accessed, folder, one))

    # --- what has taken its time: a turn at a processor, a link's direction or a disk's; then the worker goes on

    def _arrived(self, push: int, chunk: int) -> None:
        self._carry(self._optimizer.on_full(push, chunk))
        self._go_on()

    def _pulled(self, number: int) -> None:
        self._chunks_ahead += 1
        self._is_settled = False
        self._carry(self._optimizer.on_freed(number + 1))
        self._go_on()

    def _accessed(self, folder: int, one: DiskWork) -> None:
        self._queues[folder].end()
        self._begin(folder)
        self._done(one)
        self._go_on()

    def _ended(self, one: Instruction) -> None:
        self._done(one)
        self._go_on()


def _nothing() -> None: ...


def simulate(
    cluster: PagedCluster, training: Trained, *, num_steps: int = NUM_STEPS, paces: Sequence[float] = (),
    changes: Sequence[LinkChange] = (),
) -> StepTimes:  # fmt: skip
    """Return the seconds of a step once all is under way; see SimulatedTraining."""
    return SimulatedTraining(cluster, training, num_steps, paces, changes).run()
