"""Waits that ended in vain, told in the words of a TensorFlow program rather than of coarse's keys."""

from coarse.errors import CoarseError, DeadRankError, StallError


def told(error: StallError | DeadRankError, rank: int, where: str, advice: str = "") -> CoarseError:
    """The same error: where a rank waited, whom for, and what to do."""
    here = f"rank {rank} waited at {where}"
    more = f"; {advice}" if advice else ""
    why, gone, _ = str(error).removeprefix(f"rank {rank}: ").partition(" without pushing ")
    if isinstance(error, DeadRankError):
        ended = f"; see why it ends before the others{more}" if gone else ""
        return DeadRankError(f"{here}: {why}{ended}", rank=error.rank)
    if error.missing:
        missing = f"ranks {list(error.missing)} have not come in time"
        why = f"{missing}; see what they wait for, or raise stall_timeout_s{more}"
    return StallError(f"{here}: {why}", missing=error.missing)
