# Pure: no MPI, threads, clock or environment.
"""Phases of a bucket from its first gradient to the optimizer, and the table of moves between them."""

import enum


class BucketPhase(enum.IntEnum):
    """Phase of a bucket in a step.

    From IN_FLIGHT on its values are on the way or are the combined ones, and a gradient that comes has to wait until
    the bucket is opened again.
    """

    FILLING = 0
    """Phase in which backward adds this rank's gradients."""
    LATE = 1
    """Phase like FILLING, after a result of this step has come: `synchronize` pushes the bucket once more."""
    IN_FLIGHT = 2
    """Phase of a pushed bucket whose result is not taken yet."""
    LANDED = 3
    """Phase in which `.grad` holds the result, and other buckets of the step are still awaited."""
    SUMMED = 4
    """Phase in which the step's buckets have all landed."""


MOVES: dict[BucketPhase, tuple[BucketPhase, ...]] = {
    BucketPhase.FILLING: (BucketPhase.IN_FLIGHT, BucketPhase.FILLING),
    BucketPhase.LATE: (BucketPhase.IN_FLIGHT, BucketPhase.FILLING),
    BucketPhase.IN_FLIGHT: (BucketPhase.LANDED, BucketPhase.FILLING),
    BucketPhase.LANDED: (BucketPhase.SUMMED, BucketPhase.LATE),
    BucketPhase.SUMMED: (BucketPhase.FILLING,),
}
"""Phases that may follow each phase. They are in order: a push, a clearing; a landing, a cancelled push; the end of the
step, one more gradient; the next step."""


def reopened(phase: BucketPhase) -> BucketPhase:
    """Return the phase to which a bucket whose result is in `.grad` moves for one more gradient."""
    assert phase in (BucketPhase.LANDED, BucketPhase.SUMMED), f"a bucket that is {phase.name} has no result"
    return BucketPhase.LATE if phase is BucketPhase.LANDED else BucketPhase.FILLING
