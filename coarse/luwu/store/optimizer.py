# Pure: no MPI, threads, clock or environment.
"""Optimizer node: the time and order of its reads, sums, updates, writes and commits (LuWu 3.3).

Operations come in the workers' order and are begun in it. Pulls go through a window, pushes are added to sums or go
straight into an update, and changes of units run behind both.

[Note: when a change may begin] While a step is being committed no change of a later one is made: it would be written
into the slot that the record is about to name. A unit's sums are in use until its step is written, and its next
gradients wait for that.

[Note: a disk that is behind] In backward a push goes straight into its unit's update, if that can begin by now. Else,
where the unit's sums have a place in memory, it is added there, workers' memory is free at once, and the update is made
later: so the disk has work in the next forward, too. Among updates that wait in backward the newest is made first, so
that those which are left at the step are spread over all of forward, into whose order they are put then.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coarse.luwu.store.changes import FROM_DISK, FROM_MEMORY, FROM_PUSH, Change, Changes, UnitState
from coarse.luwu.store.commit import Commit, UnitVersion
from coarse.luwu.store.image import Stamp
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    DropSums,
    Instruction,
    Look,
    Place,
    Prepared,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.layout import NUM_SLOTS, PagedModel
from coarse.luwu.store.operations import (
    GRADIENTS,
    Asked,
    AskNorm,
    CommitNow,
    Discard,
    EndPass,
    Freeze,
    Pull,
    Push,
    SetSteps,
    Step,
    StepSettings,
)
from coarse.luwu.store.pulls import PullWindow
from coarse.luwu.store.sums import GradientSums


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules on the time of updates and commits."""

    in_backward: bool = False
    """True if a unit is updated as soon as its gradients are there (the paper's way), and not at the step."""
    num_passes: int = 1
    """Number of backward passes of a step, where updates are made in backward."""
    is_speculative: bool = False
    """True if sums are kept until the step, which may have its updates made anew."""
    commit_every: int = 1
    """Number of steps between commits."""
    wants_squares: bool = False
    """True if the gradients' norm is asked for from the first step on."""


class PagedOptimizer:
    """Machine of one optimizer node and one model.

    `on_asked` begins operations, `on_done` goes on after an instruction was carried out. Instructions that need an
    answer may end in any order.
    """

    def __init__(
        self,
        model: PagedModel,
        device: int,
        rules: Rules,
        *,
        num_buffers: int,
        num_window: int,
        in_memory: Iterable[int] = (),
        resumed: Commit | None = None,
    ) -> None:
        """Start with `resumed`, the record to resume from; `in_memory` has units whose sums stay in memory."""
        self._model = model
        self._rules = rules
        self._in_memory = frozenset(in_memory)
        self._units = {unit: UnitState(None, None) for unit in model.units_of(device)}
        self.step = 0
        if resumed is not None:
            self.step = resumed.step
            for unit, known in self._units.items():
                known.now = known.committed = resumed.units[unit]
        self.window = PullWindow(num_window, model.num_chunks, self._place)
        self._changes = Changes(num_buffers, self._may_begin)
        self._cancelled: list[Change] = []
        """Changes that are not to be made and still run."""
        self._operations: deque[Asked] = deque()
        """Operations that were not begun."""
        self._num_begun = 0
        self._sums = GradientSums(
            self._units, self._changes, self._in_memory, self._on_summed, wants_squares=rules.wants_squares
        )
        self._pass = 0
        self._frozen: StepSettings | None = None
        """Settings by which updates are made before the step."""
        self._whole: list[int] = []
        """Units whose gradients are all there, to be updated before the step."""
        self._due: int | None = None
        """Step that is to be committed next."""
        self._is_syncing = False
        self._unwritten = UnitState(None, None)
        """Unit that a commit was last seen to wait for."""
        self._looks: list[tuple[int, Look]] = []
        """(Number of operations that come before, what to look at)."""
        self._handlers: dict[type, Callable[[Any], list[Instruction]]] = {
            ReadPulled: self.window.on_read,
            ReadImage: self._changes.on_there,
            ClearImage: self._changes.on_there,
            ReadSum: self._on_sum_read,
            Update: self._changes.on_changed,
            Assign: self._changes.on_changed,
            WriteImage: self._on_written,
            WriteSum: self._sums.on_written,
            Sync: lambda sync: [Prepared(sync.step)],
        }

    # --- what workers ask for

    def on_asked(self, asked: Asked, *, is_first: bool) -> list[Instruction]:
        """Take a worker's request for an operation, which may be begun by now."""
        if is_first:
            self._operations.append(asked)
        return self._go_on()

    def on_full(self, push: int, chunk: int) -> list[Instruction]:
        """Take a chunk of a push that is there from all workers; chunks come in order, push after push."""
        self._sums.on_full(push, chunk)
        return self._go_on()

    def on_look(self, token: int, unit: int, chunk: int, array: int, num_before: int) -> list[Instruction]:
        """Take one worker's request to look at an array of a chunk, as it is after so many operations."""
        self._looks.append((num_before, Look(token, unit, chunk, array, None, ())))
        return self._go_on()

    # --- what the driver has done

    def on_done(self, done: Instruction) -> list[Instruction]:
        """Go on after an instruction was carried out."""
        return [*self._handlers[type(done)](done), *self._go_on()]

    def on_added(self, done: AddSum, square: float) -> list[Instruction]:
        """Go on after values were added; `square` is that of the sum, where it was wanted."""
        return [*self._sums.on_added(done, square), *self._go_on()]

    def on_squared(self, done: SquareSum, square: float) -> list[Instruction]:
        """Take the square of a sum."""
        return [*self._sums.on_squared(done, square), *self._go_on()]

    def on_freed(self, end: int) -> list[Instruction]:
        """Free the window's chunks below a number, which all workers have."""
        return self.window.on_freed(end)

    def on_committed(self) -> list[Instruction]:
        """Go on after the record of the step that was prepared is on the disk."""
        for known in self._units.values():
            known.committed = known.now
        self._due = None
        self._is_syncing = False
        return self._go_on()

    def versions(self) -> dict[int, UnitVersion]:
        """Return the versions by unit that a record of the prepared step has to name."""
        return {unit: known.now for unit, known in self._units.items() if known.now is not None}

    @property
    def is_quiet(self) -> bool:
        """True if everything that was asked for is done, and committed where it is to be."""
        return not self._operations and not self._sums.pushes and self._changes.is_idle and self._due is None

    # --- operations, in order

    def _go_on(self) -> list[Instruction]:
        done: list[Instruction] = []
        while True:
            before = len(done), self._num_begun
            if self._whole or self._sums.pushes:
                done += self._update_whole()
            done += self._changes.go_on()
            done += self._sums.take_full()
            while self._operations and self._may_start(self._operations[0]):
                done += self._start(self._operations.popleft())
                self._num_begun += 1
            if self._sums.is_squaring:
                done += self._sums.square_on()
            if self._looks:
                done += self._take_looks()
            if self._due is not None and not self._is_syncing:
                done += self._sync(self._due)
            if (len(done), self._num_begun) == before:
                return done

    def _may_start(self, asked: Asked) -> bool:
        """Return whether the oldest operation may be begun; see [Note: when a change may begin]."""
        operation = asked.operation
        if self._sums.is_squaring:
            return False
        if isinstance(operation, Pull) or (isinstance(operation, Push) and operation.array == GRADIENTS):
            return True
        if not asked.is_complete or self._sums.pushes or self._whole:
            return False
        if isinstance(operation, Push | SetSteps) and self._units[operation.unit].change is not None:
            return False
        return self._due is None or isinstance(operation, AskNorm | Discard | Freeze)

    def _start(self, asked: Asked) -> list[Instruction]:
        match asked.operation:
            case Pull(unit):
                return self.window.on_pull(unit)
            case Push():
                return self._start_push(asked, asked.operation)
            case Freeze(settings, divisor):
                self._frozen = StepSettings(settings, 1.0, divisor)
            case EndPass():
                if self._updates_now:
                    self._whole += [unit for unit, known in self._units.items() if known.present and not known.change]
                self._pass += 1
            case Step():
                return self._start_step(asked.operation)
            case Discard():
                return self._discard()
            case AskNorm():
                self._sums.ask_norm()
            case CommitNow(step):
                self._due = step
            case SetSteps(unit, steps):
                known = self._units[unit]
                assert known.now is not None
                known.now = known.now._replace(steps=tuple(steps))
        return []

    def _start_push(self, asked: Asked, push: Push) -> list[Instruction]:
        known = self._units[push.unit]
        num_chunks = self._model.num_chunks(push.unit)
        if push.array != GRADIENTS:
            number = self._sums.begin(asked, push, num_chunks, is_direct=True)
            self._sums.pushes[number].has_change = True
            return self._assign(push, number, asked.present)
        is_whole = push.is_last and not known.summed and not self._rules.is_speculative and known.change is None
        self._sums.begin(asked, push, num_chunks, is_direct=self._updates_now and is_whole)
        return []

    def _on_summed(self, push: Push) -> None:
        known = self._units[push.unit]
        if self._updates_now and push.is_last and known.summed and known.change is None:
            self._whole.append(push.unit)

    @property
    def _updates_now(self) -> bool:
        """True if a unit whose gradients are all there is updated before the step."""
        return self._rules.in_backward and self._pass == self._rules.num_passes - 1

    def _start_step(self, step: Step) -> list[Instruction]:
        self.step = step.step
        done: list[Instruction] = []
        for unit in self.window.order.in_order([unit for unit, known in self._units.items() if known.present]):
            known = self._units[unit]
            if known.change is not None and known.change.way != step.way:
                assert self._rules.is_speculative, "an update cannot be made anew without its sums"
                self._cancel(known)
            if known.change is None:
                done += self._begin_step_of(unit, known, step.step, step.way)
            self._adopt(known)
        self._changes.put_in_order(self.window.order.in_order)
        self._forget_sums()
        if step.step % self._rules.commit_every == 0:
            self._due = step.step
        return [*done, *self.window.on_step()]

    def _discard(self) -> list[Instruction]:
        for known in self._units.values():
            if known.change is not None and not known.change.is_adopted:
                self._cancel(known)
        self._forget_sums()
        return [DropSums()]

    def _forget_sums(self) -> None:
        self._sums.forget()
        self._frozen = None
        self._pass = 0

    # --- changes of units

    def _assign(self, push: Push, number: int, present: int) -> list[Instruction]:
        """Replace an array of a unit by a push."""
        self.window.drop_foreseen()
        known = self._units[push.unit]
        now = known.now or UnitVersion(0, self.step, (0,) * len(self._model.units[push.unit].tensors))
        change = Change(push.unit, FROM_PUSH, number, known.now, now._replace(slot=_other_slot(known)))
        change.array, change.tensors = push.array, tuple(_bits(present))
        done = self._begin(known, change)
        self._adopt(known)
        return done

    def _update_whole(self) -> list[Instruction]:
        """Update units whose gradients are all there, or are all about to come."""
        done: list[Instruction] = []
        if self._due is not None or self._changes.has_waiting:
            self._keep_sums()
        if self._due is not None or self._frozen is None:
            return done
        for unit in self._whole:
            done += self._begin_step_of(unit, self._units[unit], self.step + 1, self._frozen)
        self._whole.clear()
        for number, pushed in list(self._sums.pushes.items()):
            if not pushed.is_direct:
                break  # its chunks come first, and may need a buffer
            if not pushed.has_change and pushed.asked.is_complete and pushed.asked.present:
                unit = pushed.operation.unit
                pushed.has_change = True
                known = self._units[unit]
                known.present |= pushed.asked.present
                done += self._begin_step_of(unit, known, self.step + 1, self._frozen, push=number)
        return done

    def _keep_sums(self) -> None:
        """Add waiting pushes to sums in memory; see [Note: a disk that is behind]."""
        for pushed in self._sums.pushes.values():
            if pushed.is_direct and not pushed.has_change and pushed.operation.unit in self._in_memory:
                pushed.is_direct = False

    def _begin_step_of(
        self, unit: int, known: UnitState, step: int, way: StepSettings, *, push: int | None = None
    ) -> list[Instruction]:
        """Begin a unit's update by its sums, or by a push of it."""
        assert known.now is not None
        sums = FROM_MEMORY if unit in self._in_memory else FROM_DISK
        has_gradient = [known.present >> tensor & 1 for tensor in range(len(known.now.steps))]
        made = tuple(before + has for before, has in zip(known.now.steps, has_gradient, strict=True))
        target = UnitVersion(_other_slot(known), step, made)
        change = Change(unit, sums if push is None else FROM_PUSH, -1 if push is None else push, known.now, target)
        change.way = way
        change.steps = tuple(number * has for number, has in zip(made, has_gradient, strict=True))
        return self._begin(known, change)

    def _begin(self, known: UnitState, change: Change) -> list[Instruction]:
        known.change = change
        change.num_chunks = self._model.num_chunks(change.unit)
        return self._changes.add(change, is_urgent=change.sums == FROM_MEMORY and self._updates_now)

    def _may_begin(self, change: Change) -> bool:
        """Return whether a change would meet nothing that is under way."""
        self._cancelled = [one for one in self._cancelled if one.num_running]
        if any(one.unit == change.unit for one in self._cancelled):
            return False
        return change.sums != FROM_DISK or not self._sums.is_busy(change.unit)

    def _adopt(self, known: UnitState) -> None:
        """Make a change count from now on, though not all of it is written."""
        assert known.change is not None
        known.change.is_adopted = True
        known.now = known.change.target
        if not known.change.pending:
            known.change = None

    def _cancel(self, known: UnitState) -> None:
        assert known.change is not None
        self._changes.cancel(known.change)
        self._cancelled.append(known.change)
        known.change = None

    def _on_written(self, done: WriteImage) -> list[Instruction]:
        change, follows = self._changes.on_written(done)
        known = self._units[change.unit]
        if change is known.change and change.is_adopted:
            if not change.pending:
                known.change = None
            follows += self.window.go_on()
        return follows

    def _place(self, unit: int, chunk: int) -> Place | None:
        """Return the place of the version of a chunk that counts; None while it is not written."""
        known = self._units[unit]
        change = known.change
        if known.now is None or (change is not None and change.is_adopted and chunk in change.pending):
            return None
        return Place(known.now.slot, Stamp(unit, chunk, known.now.version))

    def _on_sum_read(self, done: ReadSum) -> list[Instruction]:
        is_changes = self._changes.has_job(done.buffer)
        return self._changes.on_there(done) if is_changes else self._sums.on_read(done)

    # --- looking and committing

    def _take_looks(self) -> list[Instruction]:
        done: list[Instruction] = []
        waiting = []
        for num_before, look in self._looks:
            place = self._place(look.unit, look.chunk)
            if self._num_begun < num_before or (place is None and self._units[look.unit].now is not None):
                waiting.append((num_before, look))
            else:
                now = self._units[look.unit].now
                done.append(look._replace(at=place, steps=() if now is None else now.steps))
        self._looks = waiting
        return done

    def _sync(self, step: int) -> list[Instruction]:
        """Have all changes that count on the disks, once they are written."""
        if _is_under_way(self._unwritten):
            return []
        for known in self._units.values():
            if _is_under_way(known):
                self._unwritten = known
                return []
        self._is_syncing = True
        return [Sync(step)]


def _is_under_way(known: UnitState) -> bool:
    """Return whether a change of a unit counts and is not all written."""
    return known.change is not None and known.change.is_adopted


def _other_slot(known: UnitState) -> int:
    """Return the slot in which nothing committed lies; see [Note: two slots] in layout.py."""
    if known.committed is not None:
        return (known.committed.slot + 1) % NUM_SLOTS
    return 0 if known.now is None else known.now.slot


def _bits(mask: int) -> Iterator[int]:
    """Return the numbers of the bits that are set."""
    return (number for number in range(mask.bit_length()) if mask >> number & 1)
