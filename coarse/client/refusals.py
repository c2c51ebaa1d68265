# Pure: no MPI, threads, clock or environment.
"""The errors of a client's calls, in words: what was wanted, what came, the rank, the key, the remedy."""

from collections.abc import Sequence

import numpy as np

from coarse import errors
from coarse.errors import CoarseError, DeadRankError, InFlightError, NotKeptError, StallError
from coarse.gpu.interface import AnyArray, is_on_gpu
from coarse.protocol.dtypes import STORAGE
from coarse.protocol.records import Descriptor, Failed

ANSWER_S = 1.0
"""Seconds that devices are given to say for whom they wait."""


def error_of(failed: Failed) -> CoarseError:
    """Return the exception that a device's refusal of a key names."""
    if failed.rank >= 0:
        return DeadRankError(failed.text, rank=failed.rank)
    kind: type[CoarseError] = getattr(errors, failed.error)
    return kind(failed.text)


def require_fit(rank: int, descriptor: Descriptor, out: AnyArray) -> None:
    """Refuse an `out` that cannot take a key's result as it is."""
    is_array = isinstance(out, np.ndarray) or is_on_gpu(out)
    if is_array and out.shape == descriptor.shape and out.dtype == STORAGE[descriptor.dtype]:
        return
    wanted = f"rank {rank}: {descriptor.name!r} is {descriptor} and out must be"
    if not is_array:
        raise TypeError(f"{wanted} such a numpy array, got {type(out).__name__}")
    raise ValueError(f"{wanted} so too, got {out.dtype}{list(out.shape)}; leave out away to get a new array")


def unregistered(rank: int, descriptor: Descriptor, waited_s: float) -> StallError:
    """Return the error of a key's first use that no device answered."""
    return StallError(
        f"rank {rank}: no memory device gave {descriptor.name!r} its {descriptor.nbytes} bytes "
        f"within {waited_s:g} s; see whether one hangs, or raise stall_timeout_s"
    )


def stalled(
    rank: int, name: str, waited_s: float, missing: tuple[int, ...], silent: Sequence[str] = ()
) -> StallError:
    """Return the error of a result that did not come.

    `missing` are the ranks for which devices wait, `silent` devices that said nothing.
    """
    reasons = []
    if silent:
        reasons.append(f"{' and '.join(silent)} did not answer within {ANSWER_S:g} s; see whether it hangs")
    if missing:
        reasons.append(f"ranks {list(missing)} have not pushed it; see what they wait for")
    if not reasons:
        reasons.append("all ranks have pushed it; see whether a memory device hangs")
    return StallError(
        f"rank {rank}: {name} was not complete after {waited_s:g} s; {'; '.join(reasons)}, "
        "or raise stall_timeout_s",
        missing=missing,
    )


def not_taken(rank: int, name: str, what: str) -> InFlightError:
    """Return the error of a name that is used for something else too early."""
    return InFlightError(
        f"rank {rank}: {name!r} {what} before the result of its last push was taken; wait() for that handle, "
        "or pull() it, first"
    )


def not_resumed(rank: int, name: str) -> InFlightError:
    """Return the error of a push_pull that stalled and is called again with other values."""
    return InFlightError(
        f"rank {rank}: the last push_pull of {name!r} raised StallError; what it pushed is still under way, and now it "
        "comes with other values; give it the same values to go on waiting for that result, or take it by "
        f"pull({name!r}) first"
    )


def not_kept(rank: int, descriptor: Descriptor) -> NotKeptError:
    """Return the error of a pull of a result that was written into its caller's tensor alone."""
    return NotKeptError(
        f"rank {rank}: the last result of {descriptor.name!r} ({descriptor}) was written into the tensor of its "
        "push_pull, and no device has it; use that tensor, or push() what is pulled (the next push_pull of this name "
        "will leave its result at the devices), or set lend_from_bytes = 0"
    )
