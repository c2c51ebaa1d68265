# Pure: no MPI, threads, clock or environment.
"""What workers ask of an optimizer node, all of them the same and in the same order, each in its own time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coarse.errors import MismatchError

GRADIENTS = -1
"""In place of an array: what is pushed are gradients."""


class StepSettings(NamedTuple):
    """By what a chunk is updated."""

    settings: str
    coefficient: float
    divisor: int


class Pull(NamedTuple):
    """The parameters of a unit."""

    unit: int

    def __str__(self) -> str:
        return f"pulls unit {self.unit}"


class Push(NamedTuple):
    """Gradients of a unit, or values of one of its arrays (0: the parameters, 1: the first state, ...)."""

    unit: int
    array: int
    is_last: bool
    """Whether these are the unit's last gradients in this backward pass."""

    def __str__(self) -> str:
        what = "gradients" if self.array == GRADIENTS else f"array {self.array}"
        return f"pushes {what} of unit {self.unit}"


class Freeze(NamedTuple):
    """The settings by which updates are made in backward, before the step."""

    settings: str
    divisor: int

    def __str__(self) -> str:
        return f"updates in backward by {self.settings}, gradients over {self.divisor}"


class EndPass(NamedTuple):
    """A backward pass has ended."""

    def __str__(self) -> str:
        return "ends a backward pass"


class Step(NamedTuple):
    """A training step by what was pushed since the last one."""

    step: int
    settings: str
    """The optimizer's settings, as JSON."""
    coefficient: float
    """By which gradients are multiplied, so that their norm is not too large; 1: they are taken as they are."""
    divisor: int
    """By which sums of gradients are divided first."""

    @property
    def way(self) -> "StepSettings":
        """What an update has to know of it."""
        return StepSettings(self.settings, self.coefficient, self.divisor)

    def __str__(self) -> str:
        return f"makes step {self.step} by {self.settings}, gradients / {self.divisor} * {self.coefficient!r}"


class Discard(NamedTuple):
    """What was pushed since the last step does not count."""

    def __str__(self) -> str:
        return "discards its gradients"


class AskNorm(NamedTuple):
    """The sum of squares of the sums of gradients."""

    def __str__(self) -> str:
        return "asks for the gradients' norm"


class CommitNow(NamedTuple):
    """Have the last step committed, however many steps a commit is made after."""

    step: int

    def __str__(self) -> str:
        return f"wants step {self.step} committed"


class SetSteps(NamedTuple):
    """Have a unit's tensors counted as having had so many steps."""

    unit: int
    steps: tuple[int, ...]

    def __str__(self) -> str:
        return f"sets the steps of unit {self.unit} to {list(self.steps)}"


_KINDS: tuple[Any, ...] = (Pull, Push, Freeze, EndPass, Step, Discard, AskNorm, CommitNow, SetSteps)
Operation = Pull | Push | Freeze | EndPass | Step | Discard | AskNorm | CommitNow | SetSteps


def wire_of(operation: Operation) -> tuple[Any, ...]:
    """An operation as plain values."""
    return (_KINDS.index(type(operation)), *operation)


def from_wire(values: Sequence[Any]) -> Operation:
    """The operation that `wire_of` made values of."""
    kind, *fields = values
    operation: Operation = _KINDS[kind](*fields)
    return operation


@dataclass
class Asked:
    """An operation that some worker has asked for."""

    number: int
    operation: Operation
    first: int
    """The worker that was the first."""
    workers: set[int] = field(default_factory=set)
    present: int = 0
    """Of a push: a bit for each tensor that some worker has a gradient of."""
    is_complete: bool = False
    """Whether all workers have asked for it."""


class OperationLog:
    """Matches the workers' operations by their order."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._next = [0] * num_workers
        self._asked: deque[Asked] = deque()
        """Those that not all workers have asked for."""
        self._first = 0
        """The number of the first of these."""

    def on_asked(self, worker: int, operation: Operation, present: int = 0) -> tuple[Asked, bool]:
        """A worker asks for its next operation: what it is, and whether it is the first to.

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
        """The oldest operation that not all have asked for, and who has not."""
        if not self._asked:
            return None
        asked = self._asked[0]
        return asked.operation, tuple(w for w in range(self._num_workers) if w not in asked.workers)
