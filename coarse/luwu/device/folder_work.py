"""Executor of a device's models: threads for each folder's disk, and threads that compute."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np

from coarse.errors import CoarseError
from coarse.luwu.device.models import DeviceModels
from coarse.luwu.device.opening import OpenedFolders
from coarse.luwu.device.stages import Stages
from coarse.luwu.device.values import add_values, values_at
from coarse.luwu.steps import (
    CloseStore,
    OpenStore,
    PlaceOfValues,
    StoreWork,
    UseMemory,
    WriteRecord,
)
from coarse.luwu.store.declaration import Declaration, window_slot_bytes
from coarse.luwu.store.fixed_point import COMBINE, Adder, adder_of, format_of
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    Instruction,
    Look,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.kernels import Kernel, kernel_of
from coarse.luwu.store.packed_chunk import add_packed
from coarse.luwu.store.queues import FolderQueues, Priority
from coarse.luwu.store.store import Buffers, PagedStore
from coarse.protocol.clock import Clock
from coarse.proxy.instructions import Instructions
from coarse.storage.checksums import checksum_named
from coarse.storage.region import DeviceMemory

DEPTH = 2
"""Number of reads and writes of one folder that run at once."""
_SLOW_S = 1.0
_PRIORITY = {
    ReadPulled: Priority.READ_PARAMETERS,
    Look: Priority.READ_PARAMETERS,
    ReadImage: Priority.READ_STATES,
    ReadSum: Priority.READ_STATES,
    WriteImage: Priority.WRITE_STATES,
    WriteSum: Priority.WRITE_STATES,
}
Made = TypeVar("Made")
Job = Callable[[], Callable[[], Instructions]]
"""Work for a thread; its result is called by the service's thread."""


class ValueHolder(Protocol):
    """Worker that keeps its parameters in memory of its own; both methods run in a thread that computes."""

    def take(self, unit: int, first: int, values: np.ndarray) -> None:
        """Fill (n,) float32 with a unit's values from an element on, before they are updated."""
        ...

    def put(self, unit: int, first: int, values: np.ndarray) -> None:
        """Take over the values that were updated."""
        ...


class _Threads:
    """Threads that take jobs in turn."""

    def __init__(self, name: str, num_threads: int, done: Callable[[Callable[[], Instructions]], None]) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done = done
        self._threads = [
            threading.Thread(target=self._work, name=f"coarse-{name}", daemon=True) for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: Job) -> None:
        """Queue a job for the next free thread."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the threads once all jobs are done."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done(job())
            del job


@dataclass(eq=False)
class _Hands:
    """Resources that are open for one model."""

    opened: OpenedFolders
    disks: list[_Threads]
    queues: list[FolderQueues[StoreWork]]
    adder: Adder
    store: PagedStore | None = None
    """Store of the model; None for an all-reduce."""
    window: np.ndarray | None = None
    """(slots, bytes of the largest pull) uint8, which workers pull from."""
    num_running: int = 0
    begun_s: dict[StoreWork, float] = field(default_factory=dict)
    """Time at which each running read or write began."""
    is_closing: bool = False
    num_syncing: int = 0
    stages: Stages | None = None


class FolderWork:
    """Executor of the folder work that a DeviceModels asks for.

    All but the jobs runs in the service's thread.
    """

    def __init__(
        self,
        models: DeviceModels,
        memory: DeviceMemory,
        wake: Callable[[], None],
        clock: Clock,
        num_devices_here: int,
    ) -> None:
        """Start with no folder open; `wake` ends the service's sleep, and is called by other threads."""
        self._models = models
        self._memory = memory
        self._wake = wake
        self._clock = clock
        self._num_devices_here = num_devices_here
        self._results: deque[Callable[[], Instructions]] = deque()
        self._hands: dict[int, _Hands] = {}
        self._opening: _Threads | None = None
        self._under_way: dict[int, bool] = {}
        """Models whose folders are being opened -> True if they are to be closed at once."""
        self._computing: _Threads | None = None
        self.holder: ValueHolder | None = None
        """Holder of the values that count, where they are not those on the disks."""
        self._looked: dict[tuple[int, int], np.ndarray] = {}
        self.num_pending = 0
        """Number of jobs whose results were not taken."""
        models.slow_work = self._slow_work
        self.carriers: dict[type, Callable[..., None]] = {
            OpenStore: self._open,
            UseMemory: self._use_memory,
            StoreWork: self._do,
            WriteRecord: self._write_record,
            CloseStore: self._close,
        }
        """Handler for each kind of step."""

    def take_looked(self, model: int, token: int) -> np.ndarray:
        """Return values that a worker of another host looks at, (n,) float32, and forget them."""
        return self._looked.pop((model, token))

    def take_results(self) -> Instructions:
        """Return the steps that follow from the work that is done."""
        steps: Instructions = []
        while self._results:
            self.num_pending -= 1
            steps += self._results.popleft()()
        return steps

    # --- opening and closing

    def _open(self, opening: OpenStore) -> None:
        if self._opening is None:
            self._opening = _Threads("paged-open", 1, self._finish)
            cores = len(os.sched_getaffinity(0))
            num_threads = max(1, min(4, cores // (2 * self._num_devices_here)))
            self._computing = _Threads("paged-compute", num_threads, self._finish)
        node = self._models.node_of(opening.model)

        def job() -> Callable[[], Instructions]:
            opened, error = _tried(partial(OpenedFolders, opening, node, self._num_devices_here))
            if opened is None:
                assert error is not None
                return lambda: self._on_not_opened(opening, error)
            return lambda: self._on_opened(opening, opened)

        self._under_way[opening.model] = False
        self._start(self._opening, job)

    def _on_not_opened(self, opening: OpenStore, error: CoarseError) -> Instructions:
        is_unwanted = self._under_way.pop(opening.model)
        failed = self._models.on_failed(opening.model, error)
        return [*failed, *self._models.on_closed(opening.model)] if is_unwanted else failed

    def _on_opened(self, opening: OpenStore, opened: OpenedFolders) -> Instructions:
        if self._under_way.pop(opening.model):
            opened.close()
            return self._models.on_closed(opening.model)
        disks = [_Threads("paged-disk", DEPTH, self._finish) for _ in opened.folders]
        declaration = opening.declaration
        queues: list[FolderQueues[StoreWork]] = [FolderQueues(DEPTH) for _ in disks]
        hands = self._hands[opening.model] = _Hands(opened, disks, queues, _adder(declaration))
        if declaration.timeline:
            hands.stages = Stages(opened.layout.device, declaration.model, declaration.timeline)
        return self._models.on_opened(opening, opened.answer())

    def _use_memory(self, step: UseMemory) -> None:
        hands = self._hands[step.model]
        declaration, layout = hands.opened.declaration, hands.opened.layout
        model = declaration.model
        pull_bytes = window_slot_bytes(model, layout.device)
        window = self._memory.view(step.window, step.plan.num_window * pull_bytes).reshape(-1, pull_bytes)
        for room in step.gradients:
            self._memory.view(room, step.plan.gradient_bytes)[:] = 0
        hands.window = window
        if declaration.is_all_reduce:
            return
        hands.store = PagedStore(
            layout, hands.opened.folders, Buffers(model, step.plan.num_buffers), window, step.plan.in_memory,
            checksum_named(hands.opened.checksum), _kernels(declaration.kernel, declaration.optimizer),
            declaration.group_of,
        )  # fmt: skip

    def _close(self, step: CloseStore) -> None:
        if step.model in self._under_way:
            self._under_way[step.model] = True
            return
        hands = self._hands.get(step.model)
        if hands is not None and hands.num_running:
            hands.is_closing = True  # the last to end closes
            return
        self.num_pending += 1
        self._finish(partial(self._close_now, step.model))

    def _close_now(self, number: int) -> Instructions:
        """Close a model's folders, in which nothing is under way."""
        hands = self._hands.pop(number, None)
        if hands is not None:
            for disk in hands.disks:
                disk.stop()
            hands.opened.close()
            if hands.stages is not None:
                self._write_stages(hands.stages)
        return self._models.on_closed(number)

    def _write_stages(self, stages: Stages) -> None:
        try:
            stages.write()
        except OSError as error:  # the training is done, and its states are safe
            print(f"coarse: an optimizer node's timeline cannot be written: {error}", file=sys.stderr, flush=True)

    # --- work

    def _do(self, work: StoreWork) -> None:
        one = work.instruction
        hands = self._hands[work.model]
        hands.num_running += 1
        if isinstance(one, Sync):
            hands.num_syncing = len(hands.disks)
            for place, disk in enumerate(hands.disks):
                self._start(disk, partial(self._sync, hands, work, place))
            return
        priority = _PRIORITY.get(type(one))
        if priority is None:
            assert self._computing is not None
            self._start(self._computing, partial(self._compute, hands, work))
            return
        folder = self._folder_of(hands, one)
        hands.queues[folder].put(priority, work)
        self._begin(hands, folder)

    def _folder_of(self, hands: _Hands, one: Instruction) -> int:
        assert isinstance(one, ReadPulled | Look | ReadImage | ReadSum | WriteImage | WriteSum)
        if isinstance(one, ReadSum | WriteSum):
            return hands.opened.layout.sum_place(one.unit, one.chunk).folder
        return hands.opened.layout.place(one.unit, one.chunk, 0).folder

    def _begin(self, hands: _Hands, folder: int) -> None:
        for work in hands.queues[folder].start():
            hands.begun_s[work] = self._clock.now_s()
            self._start(hands.disks[folder], partial(self._access, hands, work, folder))

    def _access(self, hands: _Hands, work: StoreWork, folder: int) -> Callable[[], Instructions]:
        """Read or write; runs in a thread of the folder's disk."""
        _, error, took_s = self._timed(partial(self._read_or_write, hands, work))

        def follows() -> Instructions:
            hands.queues[folder].end()
            hands.begun_s.pop(work, None)
            self._begin(hands, folder)
            return self._answer(hands, work, 0.0, error, took_s)

        return follows

    def _read_or_write(self, hands: _Hands, work: StoreWork) -> float:
        store, one = hands.store, work.instruction
        assert store is not None
        match one:
            case ReadPulled():
                store.read_pulled(one)
            case ReadImage():
                store.read_image(one)
            case ReadSum():
                store.read_sum(one)
            case WriteImage():
                store.write_image(one)
            case WriteSum():
                store.write_sum(one)
            case Look():
                num_elements = self._num_elements(hands, one)
                if work.values:
                    values = values_at(self._memory, work.values[0], num_elements)
                else:
                    values = self._looked[work.model, one.token] = np.empty(num_elements, np.float32)
                store.look(one, values)
        return 0.0

    def _compute(self, hands: _Hands, work: StoreWork) -> Callable[[], Instructions]:
        """Add, square or update; runs in a thread that computes."""
        value, error, took_s = self._timed(partial(self._computed, hands, work))
        return lambda: self._answer(hands, work, value, error, took_s)

    def _timed(self, do: Callable[[], Made]) -> tuple[Made | None, CoarseError | None, tuple[float, float]]:
        """Return the result of a call or its error, and when it began and ended."""
        begin_s = self._clock.now_s()
        made, error = _tried(do)
        return made, error, (begin_s, self._clock.now_s())

    def _computed(self, hands: _Hands, work: StoreWork) -> float:
        store, one = hands.store, work.instruction
        if isinstance(one, AddSum):
            return self._add(hands, one, work.values)
        assert store is not None
        match one:
            case SquareSum():
                return store.square_sum(one)
            case Update():
                self._update(hands, store, one)
            case Assign():
                store.assign(one)
            case ClearImage():
                store.clear_image(one)
        return 0.0

    def _update(self, hands: _Hands, store: PagedStore, one: Update) -> None:
        if self.holder is None:
            store.update(one)
            return
        begin, _ = hands.opened.declaration.model.elements(one.unit, one.chunk)
        self.holder.take(one.unit, begin, store.master(one))
        store.update(one)
        self.holder.put(one.unit, begin, store.master(one))

    def _add(self, hands: _Hands, one: AddSum, places: tuple[PlaceOfValues, ...]) -> float:
        store = hands.store
        num_elements = self._num_elements(hands, one)
        if store is not None:
            return add_values(
                self._memory, places, num_elements, lambda values: store.add_sum(one, values, hands.adder)
            )
        assert hands.window is not None
        pulled = hands.opened.declaration.model.pulled
        target = hands.window[one.buffer, : num_elements * pulled.itemsize].view(pulled.storage)
        if places:
            add_values(self._memory, places, num_elements, lambda values: hands.adder(values, target))
        else:
            target[:] = 0
        return 0.0

    def _sync(self, hands: _Hands, work: StoreWork, place: int) -> Callable[[], Instructions]:
        """Sync one folder, in a thread of its disk; the last one's end is the instruction's."""
        _, error, took_s = self._timed(hands.opened.folders[place].sync)

        def follows() -> Instructions:
            hands.num_syncing -= 1
            if error is not None and hands.num_syncing:
                return self._models.on_failed(work.model, error)
            return [] if hands.num_syncing else self._answer(hands, work, 0.0, error, took_s)

        return follows

    def _write_record(self, step: WriteRecord) -> None:
        hands = self._hands[step.model]
        hands.num_running += 1

        def job() -> Callable[[], Instructions]:
            _, error, took_s = self._timed(partial(hands.opened.folders[0].write_commit, step.commit))
            return lambda: self._answer(hands, step, 0.0, error, took_s)

        self._start(hands.disks[0], job)

    def _answer(
        self,
        hands: _Hands,
        done: StoreWork | WriteRecord,
        value: float | None,
        error: CoarseError | None,
        took_s: tuple[float, float],
    ) -> Instructions:
        hands.num_running -= 1
        if hands.stages is not None:
            hands.stages.add(done, *took_s)
        if error is None:
            steps = self._models.on_result(done, value or 0.0)
        else:
            steps = self._models.on_failed(done.model, error)
        if hands.is_closing and not hands.num_running:
            steps += self._close_now(done.model)
        return steps

    # --- within

    def _start(self, threads: _Threads, job: Job) -> None:
        self.num_pending += 1
        threads.put(job)

    def _finish(self, follows: Callable[[], Instructions]) -> None:
        self._results.append(follows)
        self._wake()

    def _num_elements(self, hands: _Hands, one: AddSum | Look) -> int:
        declaration = hands.opened.declaration
        model = declaration.pushed if isinstance(one, AddSum) else declaration.model
        begin, end = model.elements(one.unit, one.chunk)
        return end - begin

    def _slow_work(self, number: int) -> str:
        """Return text on the reads and writes that have not ended for long."""
        hands = self._hands.get(number)
        if hands is None:
            return ""
        now_s = self._clock.now_s()
        slow = [
            f"{hands.opened.folders[self._folder_of(hands, work.instruction)].path} has not ended a "
            f"{type(work.instruction).__name__} for {now_s - begun_s:.0f} s"
            for work, begun_s in hands.begun_s.items()
            if now_s - begun_s > _SLOW_S
        ]
        return "; ".join(slow)


def _tried(do: Callable[[], Made]) -> tuple[Made | None, CoarseError | None]:
    """Return the result of a call or its error.

    Any exception becomes a CoarseError, for workers to know.
    """
    try:
        return do(), None
    except CoarseError as error:
        return None, error
    except Exception as error:
        return None, CoarseError(f"an optimizer node ended with {error!r}")


def _adder(declaration: Declaration) -> Adder:
    """Return the function that adds the pushes of an optimizer node's children."""
    if declaration.is_all_reduce:
        return COMBINE[declaration.sum]
    if declaration.is_packed:
        return partial(add_packed, format_of(declaration.sum, declaration.num_workers))
    return adder_of(declaration.sum, declaration.num_workers)


def _kernels(kernel: str, optimizer: str) -> Callable[[Any], Kernel]:
    """Return a function that makes a kernel of a group's settings."""
    if kernel == "numpy":
        return partial(kernel_of, optimizer)
    fused = import_module("coarse.luwu.torch.fused")
    return partial(fused.kernel_of, optimizer)
