# Pure: no MPI, threads, clock or environment.
"""Operations that workers ask of an optimizer node, all the same in one order, each in its own time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coarse.errors import MismatchError

GRADIENTS = -1
"""Number in place of an array's: gradients are pushed."""


class StepSettings(NamedTuple):
    """Settings by which a chunk is updated."""

    settings: str
    coefficient: float
    divisor: int


class Pull(NamedTuple):
    """Operation that pulls the parameters of a unit."""

    unit: int

    def __str__(self) -> str:
        return f"pulls unit {self.unit}"


class Push(NamedTuple):
    """Operation that pushes a unit's gradients, or values of an array (0: parameters, 1: first state, ..)."""

    unit: int
    array: int
    is_last: bool
    """True if these are the unit's last gradients in this backward pass."""

    def __str__(self) -> str:
        what = "gradients" if self.array == GRADIENTS else f"array {self.array}"
        return f"pushes {what} of unit {self.unit}"


class Freeze(NamedTuple):
    """Operation that sets the settings by which updates are made in backward, before the step."""

    settings: str
    divisor: int

    def __str__(self) -> str:
        return f"updates in backward by {self.settings}, gradients over {self.divisor}"


class EndPass(NamedTuple):
    """Operation that ends a backward pass."""

    def __str__(self) -> str:
        return "ends a backward pass"


class Step(NamedTuple):
    """Operation that makes a training step by the pushes since the last one."""

    step: int
    settings: str
    """Optimizer settings, as JSON."""
    coefficient: float
    """Factor of gradients that keeps their norm from being too large; 1: they are taken as they are."""
    divisor: int
    """Divisor that sums of gradients are divided by first."""

    @property
    def way(self) -> "StepSettings":
        """Settings that an update needs."""
        return StepSettings(self.settings, self.coefficient, self.divisor)

    def __str__(self) -> str:
        return f"makes step {self.step} by {self.settings}, gradients / {self.divisor} * {self.coefficient!r}"


class Discard(NamedTuple):
    """Operation that discards the pushes since the last step."""

    def __str__(self) -> str:
        return "discards its gradients"


class AskNorm(NamedTuple):
    """Operation that asks for the sum of squares of the sums of gradients."""

    def __str__(self) -> str:
        return "asks for the gradients' norm"


class CommitNow(NamedTuple):
    """Operation that has the last step committed, for any `commit_every`."""

    step: int

    def __str__(self) -> str:
        return f"wants step {self.step} committed"


class SetSteps(NamedTuple):
    """Operation that sets the number of steps that a unit's tensors count as having had."""

    unit: int
    steps: tuple[int, ...]

    def __str__(self) -> str:
        return f"sets the steps of unit {self.unit} to {list(self.steps)}"


_KINDS: tuple[Any, ...] = (Pull, Push, Freeze, EndPass, Step, Discard, AskNorm, CommitNow, SetSteps)
Operation = Pull | Push | Freeze | EndPass | Step | Discard | AskNorm | CommitNow | SetSteps


def wire_of(operation: Operation) -> tuple[Any, ...]:
    """Return an operation as plain values."""
    return (_KINDS.index(type(operation)), *operation)


def from_wire(values: Sequence[Any]) -> Operation:
    """Return the operation that `wire_of` made values of."""
    kind, *fields = values
    operation: Operation = _KINDS[kind](*fields)
    return operation


@dataclass
class Asked:
    """Operation that some worker has asked for."""

    number: int
    operation: Operation
    first: int
    """Worker that was the first to ask."""
    workers: set[int] = field(default_factory=set)
    present: int = 0
    """Bit for each tensor that some worker has a gradient of, in a push."""
    is_complete: bool = False
    """True if all workers have asked for it."""


class OperationLog:
    """Log that matches the workers' operations by their order."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._next = [0] * num_workers
        self._asked: deque[Asked] = deque()
        """Operations that not all workers have asked for."""
        self._first = 0
        """Number of the first of these."""

    def on_asked(self, worker: int, operation: Operation, present: int = 0) -> tuple[Asked, bool]:
        """Note a worker's next operation; return it, and whether the worker is the first to ask for it.

        Raises:
            MismatchError: another worker asked for another one at this place.
        """
        number = self._next[worker]
        self._next[worker] += 1
        is_first = number == self._first + len(self._asked)
        if is_first:
            self._asked.append(Asked(number, operation, worker))
        asked = self._asked[number - self._first]
        if asked.operation != operation:
            raise MismatchError(
                f"rank {worker} {operation}, where rank {asked.first} {asked.operation} (operation {number}); let all "
                "ranks run the same units in the same order, and make the same calls of the optimizer"
            )
        asked.workers.add(worker)
        asked.present |= present
        if len(asked.workers) == self._num_workers:
            asked.is_complete = True
            while self._asked and self._asked[0].is_complete:
                self._asked.popleft()
                self._first += 1
        return asked, is_first

    def missing(self) -> tuple[Operation, tuple[int, ...]] | None:
        """Return the oldest operation that not all have asked for, and the workers that have not."""
        if not self._asked:
            return None
        asked = self._asked[0]
        return asked.operation, tuple(w for w in range(self._num_workers) if w not in asked.workers)
