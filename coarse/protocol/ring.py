"""Steps of ring reduce-scatter and all-gather as one member sees them.

Members are positions 0..p-1 in a circle; in direction +1 each sends to the next higher position,
in direction -1 to the next lower (COARSE IV-A: adjacent sync groups run in opposite directions).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise


@dataclass(frozen=True)
class RingStep:
    """Step of one member: it sends a chunk to its next and receives one from its previous."""

    send_chunk: int
    receive_chunk: int
    accumulate: bool
    """True if the received chunk is added to the own one (reduce-scatter); False if it replaces it (all-gather)."""


def next_member(position: int, num_members: int, direction: int) -> int:
    """Return the position that `position` sends to."""
    return (position + _checked(direction)) % num_members


@lru_cache(maxsize=1 << 10)
def ring_steps(position: int, num_members: int, direction: int) -> tuple[RingStep, ...]:
    """Return the 2(p-1) steps of one member: p-1 of reduce-scatter, then p-1 of all-gather.

    A member sends in each step what it received in the one before. After reduce-scatter it holds the sum of all members
    in chunk `position + direction`.
    """
    if not 0 <= position < num_members:
        raise ValueError(f"position must lie in 0..{num_members - 1}, got {position}")
    _checked(direction)
    steps = []
    for step in range(2 * (num_members - 1)):
        send_chunk = (position - direction * step) % num_members
        receive_chunk = (send_chunk - direction) % num_members
        steps.append(RingStep(send_chunk, receive_chunk, step < num_members - 1))
    return tuple(steps)


@lru_cache(maxsize=1 << 12)
def chunk_bounds(num_elements: int, num_members: int) -> tuple[tuple[int, int], ...]:
    """Return first and past-the-last element of each of p contiguous chunks.

    Chunks differ by at most one element, and are empty where there are too few elements.
    """
    if num_elements < 0 or num_members < 1:
        raise ValueError(
            "num_elements must be at least 0 and num_members at least 1, "
            f"got {num_elements} and {num_members}"
        )
    cuts = [chunk * num_elements // num_members for chunk in range(num_members + 1)]
    return tuple(pairwise(cuts))


def _checked(direction: int) -> int:
    if direction not in (+1, -1):
        raise ValueError(f"direction must be +1 or -1, got {direction}")
    return direction
