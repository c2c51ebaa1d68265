# Pure: no MPI, threads, clock or environment.
"""Changes of units to their next version, chunk by chunk, through buffers that few chunks share."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coarse.luwu.store.commit import UnitVersion
from coarse.luwu.store.image import Stamp
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    Instruction,
    Place,
    ReadImage,
    ReadSum,
    Update,
    WriteImage,
)
from coarse.luwu.store.operations import GRADIENTS, StepSettings

FROM_MEMORY, FROM_DISK, FROM_PUSH = "memory", "disk", "push"
"""Sources of a change's sums, or values."""


@dataclass(eq=False)
class Change:
    """Change of a unit to its next version."""

    unit: int
    sums: str
    push: int
    """Number of the push, for a change FROM_PUSH."""
    source: UnitVersion | None
    """Version that the change starts from; None where the unit was never written."""
    target: UnitVersion
    way: StepSettings | None = None
    steps: tuple[int, ...] = ()
    """Number of the step that each tensor makes, in a step; 0: none."""
    array: int = GRADIENTS
    """Array that assigned values belong to."""
    tensors: tuple[int, ...] = ()
    """Tensors that assigned values belong to."""
    num_chunks: int = 0
    num_begun: int = 0
    pending: set[int] = field(default_factory=set)
    """Chunks that are not written."""
    num_running: int = 0
    is_adopted: bool = False
    """True if the change counts: pulls that come now want this version."""
    is_cancelled: bool = False

    @property
    def is_step(self) -> bool:
        """True if it is an optimizer's step."""
        return self.array == GRADIENTS

    def place(self, version: UnitVersion, chunk: int) -> Place:
        """Return the place of a chunk's image in a version."""
        return Place(version.slot, Stamp(self.unit, chunk, version.version))


@dataclass(eq=False)
class UnitState:
    """State of a unit as its optimizer node knows it."""

    now: UnitVersion | None
    """Version that counts, some chunks of which may still be under way; None: it was never written."""
    committed: UnitVersion | None
    change: Change | None = None
    """Change to `now`, or, until the step, beyond."""
    present: int = 0
    """Bit for each tensor that has a gradient since the last step."""
    summed: set[int] = field(default_factory=set)
    """Chunks that have a sum."""


@dataclass
class _Job:
    """Chunk of a change in a buffer."""

    change: Change
    chunk: int
    num_awaited: int
    """Number of inputs, image and sum, that are still to come."""


class Changes:
    """Queue of changes, which are made in turn, their chunks in order, as buffers come free."""

    def __init__(self, num_buffers: int, may_begin: Callable[[Change], bool]) -> None:
        """Start without changes; `may_begin` returns whether anything of a change may be done by now."""
        self._free = deque(range(num_buffers))
        self._may_begin = may_begin
        self._waiting: deque[Change] = deque()
        self._jobs: dict[int, _Job] = {}
        """Jobs by buffer."""
        self._at: dict[tuple[int, int], int] = {}
        """(Unit, chunk) of a change FROM_PUSH -> its buffer, until its values are there."""

    @property
    def is_idle(self) -> bool:
        """True if no change waits or runs."""
        return not self._waiting and not self._jobs

    @property
    def has_waiting(self) -> bool:
        """True if some chunk of a change has no buffer yet."""
        return bool(self._waiting)

    def put_in_order(self, in_order: Callable[[list[int]], list[int]]) -> None:
        """Reorder waiting changes by another order of their units, except for one that has begun."""
        begun = [change for change in self._waiting if change.num_begun]
        rank = {unit: place for place, unit in enumerate(in_order([change.unit for change in self._waiting]))}
        later = sorted((one for one in self._waiting if not one.num_begun), key=lambda one: rank[one.unit])
        self._waiting = deque([*begun, *later])

    def take_buffer(self) -> int | None:
        """Take a buffer for something else, if one is free; `give_back` returns it."""
        return self._free.popleft() if self._free else None

    def give_back(self, buffer: int) -> list[Instruction]:
        """Take back a buffer that is free again."""
        self._free.append(buffer)
        return self.go_on()

    def add(self, change: Change, *, is_urgent: bool = False) -> list[Instruction]:
        """Add a change, to be made after those before it.

        An urgent one comes before all that have not begun, and whose values are there.
        """
        change.pending = set(range(change.num_chunks))
        place = len(self._waiting)
        while is_urgent and place and not self._waiting[place - 1].num_begun:
            if self._waiting[place - 1].sums == FROM_PUSH:
                break
            place -= 1
        self._waiting.insert(place, change)
        return self.go_on()

    def cancel(self, change: Change) -> None:
        """Cancel a change; the parts of it that run end by themselves."""
        change.is_cancelled = True
        if change in self._waiting:
            self._waiting.remove(change)

    def buffer_for(self, unit: int, chunk: int) -> int | None:
        """Return the buffer for the values of a chunk of a change FROM_PUSH; None while it has no buffer."""
        return self._at.pop((unit, chunk), None)

    def go_on(self) -> list[Instruction]:
        """Return the instructions that may begin."""
        done: list[Instruction] = []
        while self._waiting and self._free and self._may_begin(self._waiting[0]):
            change = self._waiting[0]
            while self._free and change.num_begun < change.num_chunks:
                done += self._begin(change, self._free.popleft())
            if change.num_begun == change.num_chunks:
                self._waiting.popleft()
        return done

    def _begin(self, change: Change, buffer: int) -> list[Instruction]:
        chunk = change.num_begun
        change.num_begun += 1
        change.num_running += 1
        done: list[Instruction] = []
        if change.source is None:
            done.append(ClearImage(buffer, change.unit, chunk))
        else:
            done.append(ReadImage(buffer, change.unit, chunk, change.place(change.source, chunk)))
        if change.sums == FROM_DISK:
            done.append(ReadSum(buffer, change.unit, chunk))
        elif change.sums == FROM_PUSH:
            self._at[change.unit, chunk] = buffer
        self._jobs[buffer] = _Job(change, chunk, 1 if change.sums == FROM_MEMORY else 2)
        return done

    def on_there(self, done: ReadImage | ClearImage | ReadSum | AddSum) -> list[Instruction]:
        """Note that an image, or a sum, is in its buffer."""
        job = self._jobs[done.buffer]
        job.num_awaited -= 1
        if job.num_awaited:
            return []
        change = job.change
        if change.is_cancelled:
            return self._end(done.buffer, job)
        if not change.is_step:
            return [Assign(done.buffer, change.unit, job.chunk, change.array, change.tensors)]
        assert change.way is not None
        has_sum = change.sums != FROM_MEMORY
        return [Update(done.buffer, change.unit, job.chunk, has_sum, change.steps, change.way)]

    def on_changed(self, done: Update | Assign) -> list[Instruction]:
        """Write a chunk whose image is that of the next version."""
        job = self._jobs[done.buffer]
        if job.change.is_cancelled:
            return self._end(done.buffer, job)
        return [WriteImage(done.buffer, done.unit, done.chunk, job.change.place(job.change.target, done.chunk))]

    def on_written(self, done: WriteImage) -> tuple[Change, list[Instruction]]:
        """Note that a chunk's image is written; return its change, and the instructions that follow."""
        job = self._jobs[done.buffer]
        job.change.pending.discard(done.chunk)
        return job.change, self._end(done.buffer, job)

    def has_job(self, buffer: int) -> bool:
        """Return whether a buffer belongs to a change."""
        return buffer in self._jobs

    def _end(self, buffer: int, job: _Job) -> list[Instruction]:
        job.change.num_running -= 1
        del self._jobs[buffer]
        return self.give_back(buffer)
