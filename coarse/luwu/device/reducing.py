# Pure: no MPI, threads, clock or environment.
"""Root of an all-reduce, in place of an optimizer: sums go back to the workers (SwitchML, SHARP).

Workers ask for a push and a pull of each unit, in turn; so the chunks that are pulled are those that are pushed. Each
is combined into its slot of the window as soon as all have pushed it and the slot is free.
"""

from collections import deque

from coarse.luwu.store.instructions import AddSum, Consumed, Instruction, Offer
from coarse.luwu.store.layout import PagedModel
from coarse.luwu.store.operations import Asked, Pull, Push


class ReducingNode:
    """Stand-in for a PagedOptimizer that keeps nothing; a buffer is a slot of the window."""

    def __init__(self, model: PagedModel, num_window: int) -> None:
        self._model = model
        self._num_window = num_window
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(Push, unit, chunk) of chunks that are there from all, and have no slot yet, in order."""
        self._units: deque[int] = deque()
        """Units of pushes of which not all chunks are there from all."""
        self._numbers: dict[tuple[int, int], int] = {}
        """(Push, chunk) -> its number among all chunks, while it is combined."""
        self._made: dict[int, tuple[int, int]] = {}
        """Number -> unit and chunk that were combined, and that no worker has asked to pull."""
        self._num_begun = self._num_asked = self._freed = 0
        """Numbers of chunks."""

    def on_asked(self, asked: Asked, *, is_first: bool) -> list[Instruction]:
        """Take a worker's next operation."""
        operation = asked.operation
        if is_first and isinstance(operation, Push):
            self._units.append(operation.unit)
        elif is_first and isinstance(operation, Pull):
            self._num_asked += self._model.num_chunks(operation.unit)
            return self._offer()
        return []

    def on_full(self, push: int, chunk: int) -> list[Instruction]:
        """Take a chunk that is there from all workers."""
        unit = self._units[0]
        self._waiting.append((push, unit, chunk))
        if chunk + 1 == self._model.num_chunks(unit):
            self._units.popleft()
        return self._begin()

    def on_added(self, add: AddSum, square: float) -> list[Instruction]:
        """Offer a chunk that was combined."""
        number = self._numbers.pop((add.push, add.chunk))
        self._made[number] = add.unit, add.chunk
        return [Consumed(add.push, add.chunk), *self._offer()]

    def on_freed(self, end: int) -> list[Instruction]:
        """Free the slots of the chunks below `end`, which all workers have."""
        self._freed = max(self._freed, end)
        return self._begin()

    @property
    def is_quiet(self) -> bool:
        """True if nothing is under way."""
        return not self._numbers and not self._waiting

    def _begin(self) -> list[Instruction]:
        started: list[Instruction] = []
        while self._waiting and self._num_begun < self._freed + self._num_window:
            push, unit, chunk = self._waiting.popleft()
            number = self._num_begun
            self._num_begun += 1
            self._numbers[push, chunk] = number
            started.append(AddSum(push, unit, chunk, number % self._num_window, True, False))
        return started

    def _offer(self) -> list[Instruction]:
        ready = sorted(number for number in self._made if number < self._num_asked)
        return [Offer(number, *self._made.pop(number)) for number in ready]
