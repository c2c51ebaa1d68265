"""When the buckets of synchronisations are pushed and taken, for whoever measures how far backward hides them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coarse.protocol.clock import Clock, WallClock


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One call of TensorFlow's into coarse; seconds of the recorder's clock."""

    kind: str
    """"push" (a bucket's tensors are copied into its memory) or "take" (its results are waited for and copied)."""
    bucket: int
    nbytes: int
    begin_s: float
    end_s: float


class Recorder:
    """The transfers since it was made, in the order in which they ended."""

    def __init__(self, clock: Clock | None = None) -> None:
        """`clock` is by default the system's monotonic one, which all processes of a node share."""
        self._clock = clock or WallClock()
        self.transfers: list[Transfer] = []

    @contextmanager
    def during(self, kind: str, bucket: int, nbytes: int) -> Iterator[None]:
        """Record what the block does, unless it fails."""
        begin_s = self._clock.now_s()
        yield
        end_s = self._clock.now_s()
        self.transfers.append(Transfer(kind=kind, bucket=bucket, nbytes=nbytes, begin_s=begin_s, end_s=end_s))
