# Pure: no MPI, threads, clock or environment.
"""Pushes of workers, into sums of gradients in memory or on the disk, or straight into a change."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coarse.luwu.store.changes import Changes, UnitState
from coarse.luwu.store.instructions import (
    MEMORY,
    AddSum,
    Consumed,
    Instruction,
    ReadSum,
    SquareSum,
    TellNorm,
    WriteSum,
)
from coarse.luwu.store.operations import GRADIENTS, Asked, Push

_FOR_A_WORKER = -1
"""Number in place of a push's: a sum is read to be squared."""


@dataclass(eq=False)
class Pushed:
    """Push that was begun."""

    asked: Asked
    operation: Push
    num_chunks: int
    is_direct: bool = False
    """True if it goes into a change, and not to sums."""
    has_change: bool = False
    num_added: int = 0


class GradientSums:
    """Pushes under way, in their order, and the sums of gradients since the last step."""

    def __init__(
        self,
        units: Mapping[int, UnitState],
        changes: Changes,
        in_memory: frozenset[int],
        on_summed: Callable[[Push], None],
        *,
        wants_squares: bool,
    ) -> None:
        """Start without pushes; `on_summed` is called for a push of gradients all of which was added to sums."""
        self._units = units
        self._changes = changes
        self._in_memory = in_memory
        self._on_summed = on_summed
        self._wants_squares = wants_squares
        self.pushes: dict[int, Pushed] = {}
        """Pushes not all of which was added, by their number among pushes."""
        self._num_pushes = 0
        self._full: deque[tuple[int, int]] = deque()
        """(Push, chunk) of chunks that are there from all workers, and that nothing was done with."""
        self._on_their_way: dict[int, int] = {}
        """Buffer of a sum -> its push, or _FOR_A_WORKER."""
        self._busy: set[tuple[int, int]] = set()
        """(Unit, chunk)s whose sums are being added to, or written."""
        self._squares: dict[tuple[int, int], float] = {}
        self._to_square: deque[tuple[int, int]] | None = None
        """Sums whose squares are to be computed for workers that asked for the norm; None where no worker waits."""
        self._num_squaring = 0

    # --- pushes

    def begin(self, asked: Asked, operation: Push, num_chunks: int, *, is_direct: bool) -> int:
        """Begin a push; return its number."""
        number = self._num_pushes
        self._num_pushes += 1
        self.pushes[number] = Pushed(asked, operation, num_chunks, is_direct)
        return number

    def on_full(self, push: int, chunk: int) -> None:
        """Note that all workers' values of a chunk are there."""
        self._full.append((push, chunk))

    def take_full(self) -> list[Instruction]:
        """Add the chunks that can be added."""
        done: list[Instruction] = []
        while self._full:
            number, chunk = self._full[0]
            pushed = self.pushes.get(number)
            wanted = None if pushed is None or not pushed.asked.is_complete else self._add(number, pushed, chunk)
            if wanted is None:
                break
            self._full.popleft()
            done += wanted
        return done

    def _add(self, number: int, pushed: Pushed, chunk: int) -> list[Instruction] | None:
        """Return the instructions for a chunk of a push; None where it has to wait."""
        unit = pushed.operation.unit
        known = self._units[unit]
        if not pushed.asked.present:  # nobody has anything
            self._count(number)
            return [Consumed(number, chunk)]
        if pushed.is_direct:
            into = self._changes.buffer_for(unit, chunk)
            squares = self._wants_squares and pushed.operation.array == GRADIENTS
            return None if into is None else [AddSum(number, unit, chunk, into, True, squares)]
        if known.change is not None or (unit, chunk) in self._busy:
            return None
        is_first = chunk not in known.summed
        buffer = MEMORY if unit in self._in_memory else self._changes.take_buffer()
        if buffer is None:
            return None
        known.present |= pushed.asked.present
        self._busy.add((unit, chunk))
        if buffer == MEMORY:
            return [AddSum(number, unit, chunk, MEMORY, is_first, self._wants_squares)]
        self._on_their_way[buffer] = number
        if is_first:
            return [AddSum(number, unit, chunk, buffer, True, self._wants_squares)]
        return [ReadSum(buffer, unit, chunk)]

    def on_added(self, done: AddSum, square: float) -> list[Instruction]:
        """Go on after values were added; `square` is that of the sum, where it was wanted."""
        if done.wants_square:
            self._squares[done.unit, done.chunk] = square
        follows: list[Instruction] = [Consumed(done.push, done.chunk)]
        if self.pushes[done.push].is_direct:
            follows += self._changes.on_there(done)
        else:
            self._units[done.unit].summed.add(done.chunk)
            if done.buffer != MEMORY:
                follows.append(WriteSum(done.buffer, done.unit, done.chunk))
            else:
                self._busy.discard((done.unit, done.chunk))
        self._count(done.push)
        return follows

    def _count(self, number: int) -> None:
        """Count one more added chunk of a push, perhaps the last."""
        pushed = self.pushes[number]
        pushed.num_added += 1
        if pushed.num_added == pushed.num_chunks:
            del self.pushes[number]
            if not pushed.is_direct:
                self._on_summed(pushed.operation)

    # --- sums

    def on_read(self, done: ReadSum) -> list[Instruction]:
        """Go on after a sum, which no change wants, was read."""
        push = self._on_their_way[done.buffer]
        if push == _FOR_A_WORKER:
            return [SquareSum(done.buffer, done.unit, done.chunk)]
        return [AddSum(push, done.unit, done.chunk, done.buffer, False, self._wants_squares)]

    def on_written(self, done: WriteSum) -> list[Instruction]:
        """Go on after a sum was written."""
        self._busy.discard((done.unit, done.chunk))
        del self._on_their_way[done.buffer]
        return self._changes.give_back(done.buffer)

    def is_busy(self, unit: int) -> bool:
        """Return whether some sum of a unit is on its way."""
        return any(one == unit for one, _ in self._busy)

    def forget(self) -> None:
        """Forget all sums."""
        for known in self._units.values():
            known.present = 0
            known.summed = set()
        self._squares.clear()

    # --- the norm

    @property
    def is_squaring(self) -> bool:
        """True if workers wait for the norm."""
        return self._to_square is not None

    def ask_norm(self) -> None:
        """Begin to compute the norm; workers presumably want that of later steps, too."""
        self._wants_squares = True
        sums = [(unit, chunk) for unit, known in self._units.items() for chunk in sorted(known.summed)]
        self._to_square = deque(one for one in sums if one not in self._squares)

    def square_on(self) -> list[Instruction]:
        """Square the sums that were not squared when they were added, then tell the norm."""
        done: list[Instruction] = []
        if self._to_square is None:
            return done
        while self._to_square:
            unit, chunk = self._to_square[0]
            if unit in self._in_memory:
                done.append(SquareSum(MEMORY, unit, chunk))
            elif (unit, chunk) in self._busy or (buffer := self._changes.take_buffer()) is None:
                return done
            else:
                self._on_their_way[buffer] = _FOR_A_WORKER
                done.append(ReadSum(buffer, unit, chunk))
            self._to_square.popleft()
            self._num_squaring += 1
        if not self._num_squaring:
            self._to_square = None
            done.append(TellNorm(math.fsum(self._squares.values())))
        return done

    def on_squared(self, done: SquareSum, square: float) -> list[Instruction]:
        """Take the square of a sum."""
        self._squares[done.unit, done.chunk] = square
        self._num_squaring -= 1
        if done.buffer == MEMORY:
            return []
        del self._on_their_way[done.buffer]
        return self._changes.give_back(done.buffer)
