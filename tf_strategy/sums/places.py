# Pure: no MPI, threads, clock or environment.
"""Places of workers in their programs, and texts for their differences and for missing workers."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from coarse.errors import CoarseError, DeadRankError, StallError

_APART = (
    "see whether a rank's data ended earlier, its model has other layers, or only some ranks stop, save, read a metric "
    "or call the strategy"
)


@dataclass(frozen=True)
class ProgramPlace:
    """Subject of a worker's synchronisation, with the types and shapes of its tensors."""

    subject: str
    kinds: tuple[str, ...] = ()
    """Type and shape of each tensor, such as "float32[3, 4]"."""

    @cached_property
    def fingerprint(self) -> int:
        """Number below 2^62 that tells places apart, equal on all ranks."""
        return fingerprint_of(self.encoded)

    @cached_property
    def encoded(self) -> bytes:
        """Bytes that `decoded` reads."""
        return json.dumps([self.subject, self.kinds]).encode()

    def __str__(self) -> str:
        more = f" and {len(self.kinds) - 3} more" if len(self.kinds) > 3 else ""
        return f"{self.subject} ({', '.join(self.kinds[:3])}{more})" if self.kinds else self.subject


def fingerprint_of(said: bytes) -> int:
    """Return a number below 2^62, so that it fits an int64, that tells inputs apart."""
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little") >> 2


def decoded(blob: bytes) -> ProgramPlace:
    """Return the place that another rank encoded."""
    subject, kinds = json.loads(blob)
    return ProgramPlace(subject, tuple(kinds))


def difference_of(places: Sequence[ProgramPlace]) -> str:
    """Return a text of each rank's place and the remedy.

    If tensors differ only in type or shape, it names the first such tensor.
    """
    subject = places[0].subject
    if len({(place.subject, len(place.kinds)) for place in places}) > 1:
        return f"the workers' programs have come apart: {_by_rank(places, str)}; {_APART}"
    if len(set(places)) == 1:
        return f"the workers' programs have come apart: {places[0]} comes sooner on some; {_APART}"
    by_tensor = list(zip(*(place.kinds for place in places), strict=True))
    number = next(number for number, kinds in enumerate(by_tensor) if len(set(kinds)) > 1)
    which = f"{subject}, tensor {number + 1} of {len(by_tensor)}," if len(by_tensor) > 1 else subject
    said = _by_rank(places, lambda place: place.kinds[number])
    return f"{which} is {said}; give it one shape and type on all ranks, or {_APART}"


def _by_rank(places: Sequence[ProgramPlace], said: Callable[[ProgramPlace], str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(said(place), []).append(rank)
    return " but ".join(f"{text} on {_ranks(at)}" for text, at in ranks.items())


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def told(error: StallError | DeadRankError, rank: int, where: str, advice: str = "") -> CoarseError:
    """Return the error with its rank's place, the ranks it waited for, and the remedy."""
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
