"""Enumerates all states that a small model can reach, breadth first: safety in each, and an end from each."""

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

PERHAPS = "perhaps "
"""Begins the names of steps that may be taken, and never need be."""


class Violation(Exception):
    """A step that must never be; says why."""


@dataclass(frozen=True)
class Outcome:
    """What an exploration found."""

    num_states: int
    num_steps: int
    fault: str | None
    """Why the model is wrong; None where it is right."""
    trace: tuple[str, ...]
    """The steps to the fault."""


def explore(
    first: Hashable,
    steps: Callable[[Hashable], Iterable[tuple[str, Hashable]]],
    is_end: Callable[[Hashable], bool],
    *,
    most: int = 5_000_000,
) -> Outcome:
    """Check all that can be reached from a state, of which `steps` gives the next ones with names.

    Raised Violations are faults. So is a state from which no end can be reached by steps that are not PERHAPS taken:
    where every step that stays possible is taken at some time, a run that never ends must come to such states.
    """
    numbers: dict[Hashable, int] = {first: 0}
    states = [first]
    reached_from, reached_by = array("q", [-1]), [""]
    begins, ends = array("q"), array("q")

    def trace(number: int) -> tuple[str, ...]:
        taken = []
        while number > 0:
            taken.append(reached_by[number])
            number = reached_from[number]
        return tuple(reversed(taken))

    current = num_steps = 0
    while current < len(states):
        if len(states) > most:
            raise RuntimeError(f"more than {most} states")
        try:
            for name, state in steps(states[current]):
                number = numbers.get(state)
                if number is None:
                    number = numbers[state] = len(states)
                    states.append(state)
                    reached_from.append(current)
                    reached_by.append(name)
                num_steps += 1
                if not name.startswith(PERHAPS):
                    begins.append(current)
                    ends.append(number)
        except Violation as fault:
            return Outcome(len(states), num_steps, str(fault), trace(current))
        current += 1

    stuck = _first_without_end(states, begins, ends, is_end)
    if stuck is None:
        return Outcome(len(states), num_steps, None, ())
    return Outcome(len(states), num_steps, "no end can be reached any more", trace(stuck))


def _first_without_end(
    states: list[Hashable], begins: "array[int]", ends: "array[int]", is_end: Callable[[Hashable], bool]
) -> int | None:
    """The first state from which no end can be reached."""
    counts = array("q", bytes(8 * (len(states) + 1)))
    for end in ends:
        counts[end + 1] += 1
    for number in range(len(states)):
        counts[number + 1] += counts[number]
    before, places = array("q", bytes(8 * len(ends))), array("q", counts)
    for begin, end in zip(begins, ends, strict=True):
        before[places[end]] = begin
        places[end] += 1
    has_end = bytearray(len(states))
    waiting = [number for number, state in enumerate(states) if is_end(state)]
    for number in waiting:
        has_end[number] = 1
    while waiting:
        number = waiting.pop()
        for place in range(counts[number], counts[number + 1]):
            if not has_end[before[place]]:
                has_end[before[place]] = 1
                waiting.append(before[place])
    missing = has_end.find(0)
    return None if missing < 0 else missing
