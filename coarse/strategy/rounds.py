# Pure: no MPI, threads, clock or environment.
"""State machine of a round, which decides who sums each bucket and when it sets out (COARSE III-F).

Live, emulated and simulated training feed it the same events and carry out what it answers.
"""

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from coarse.protocol.plan import Facts


class By(enum.Enum):
    """Owner of a bucket's sum in a round."""

    DEVICES = "devices"
    WORKERS = "workers"
    NOBODY = "nobody"
    """Stays as it is in this round; for strategies that exchange updates."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One synchronisation of a model's buckets, and how it is made."""

    by: tuple[By, ...]
    """Owner of each bucket's sum, in the order of backward."""
    hold_back: bool = True
    """True if buckets that the workers sum wait for the end of backward, as in COARSE's T_train (III-F). Until then
    another gradient may still arrive for them."""
    facts: tuple[Facts, ...] | None = None
    """Facts by which tensors are planned from now on, where these are not the measured ones."""

    @property
    def num_to_devices(self) -> int:
        """Number of buckets that the devices sum."""
        return self.by.count(By.DEVICES)

    @property
    def num_exchanged(self) -> int:
        """Number of buckets that are summed at all."""
        return len(self.by) - self.by.count(By.NOBODY)

    def of_nobody(self) -> "Round":
        """Return the round in which every bucket stays as it is."""
        return replace(self, by=(By.NOBODY,) * len(self.by))


def first_to_devices(
    split: int, count: int, *, hold_back: bool = True, facts: tuple[Facts, ...] | None = None
) -> Round:
    """Return the round of which the devices sum the first `split` buckets, and the workers the others."""
    return Round(by=(By.DEVICES,) * split + (By.WORKERS,) * (count - split), hold_back=hold_back, facts=facts)


class SetOut(NamedTuple):
    """Departure of a bucket's contribution: to memory devices, or into the workers' ring, in this order."""

    bucket: int
    by: By


class WorkerRounds:
    """One worker's buckets, round by round. Before the first `begin`, everything goes to the devices."""

    def __init__(self) -> None:
        self._by: tuple[By, ...] = ()
        self._hold_back = True
        self._held: set[int] = set()

    @property
    def shares(self) -> bool:
        """True if the workers sum a part of this round."""
        return By.WORKERS in self._by

    @property
    def is_holding(self) -> bool:
        """True if buckets wait for the end of backward."""
        return bool(self._held)

    def begin(self, decided: Round) -> None:
        """Begin a round, which is the same on all workers, and hold no bucket any more."""
        self._by, self._hold_back = decided.by, decided.hold_back
        self._held.clear()

    def share_nothing(self) -> None:
        """Send everything of this round to the devices from now on, but for what is held already."""
        self._by = ()

    def on_ready(self, bucket: int) -> list[SetOut]:
        """Return what sets out now that a bucket's gradients are all there.

        A bucket that came after the round began, of parameters added since, goes to the devices.
        """
        if bucket >= len(self._by) or self._by[bucket] is By.DEVICES:
            return [SetOut(bucket, By.DEVICES)]
        if self._by[bucket] is By.NOBODY:
            return []
        if not self._hold_back:
            return [SetOut(bucket, By.WORKERS)]
        self._held.add(bucket)
        return []

    def cancel(self, bucket: int) -> bool:
        """Take back a bucket that gets another gradient; return False where it has set out."""
        was_held = bucket in self._held
        self._held.discard(bucket)
        return was_held

    def on_backward_end(self, *, are_all_here: bool = True) -> list[SetOut]:
        """Return what sets out at the end of backward: to the devices, where a worker takes no part in the ring."""
        held, self._held = sorted(self._held), set()
        by = By.WORKERS if are_all_here else By.DEVICES
        return [SetOut(bucket, by) for bucket in held]
