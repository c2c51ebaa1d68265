"""Reducers of buckets that travel by a strategy's wire, or whose sums come some rounds late.

They stand before any reducer.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coarse.errors import InFlightError
from coarse.parallel.data.reducer import DualSync, Flight, Reducer, Rounds
from coarse.protocol.dtypes import DType
from coarse.protocol.records import Descriptor
from coarse.session import is_initialized
from coarse.strategy.sent import SentBucket, name_in_turn, wire_of
from coarse.strategy.strategy import Strategy

if TYPE_CHECKING:
    from coarse.parallel.data.pass_timer import PassTimer


class WiredReducer:
    """Reducer of buckets whose values stay in the worker's own memory.

    The values that a wire makes of them are another reducer's bucket.
    """

    takes_gpus = False

    def __init__(self, reducer: Reducer, strategy: Strategy, worker: int, num_workers: int) -> None:
        """Wrap a reducer, which sums the values that travel."""
        self._reducer = reducer
        self._strategy = strategy
        self._worker = worker
        self._num_workers = num_workers
        self._buckets: list[tuple[SentBucket, np.ndarray, np.ndarray] | None] = []
        """Bucket, its values, and the values that travel for it; None if the values travel themselves."""

    @property
    def rounds(self) -> Rounds | None:
        """Part of the wrapped reducer that is told of rounds."""
        return self._reducer.rounds

    @property
    def timer(self) -> "PassTimer | None":
        """Timer of the wrapped reducer."""
        return self._reducer.timer

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions, in bytes that travel."""
        return self._reducer.dual_sync

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first: the worker's own if a wire encodes it."""
        wire = wire_of(self._strategy, descriptor, num_exact)
        if wire is None:
            self._buckets.append(None)
            return self._reducer.memory_of(descriptor, num_exact)
        bucket = SentBucket(descriptor, wire, self._worker, self._num_workers, num_exact)
        values = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        self._buckets.append((bucket, values, self._reducer.memory_of(bucket.sent)))
        return values

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Refuse a bucket on a GPU: wires take no GPU's memory."""
        raise AssertionError("a bucket with a wire lies on the host")

    def start(self, index: int) -> Flight:
        """Encode a bucket's values and start their bucket; the flight decodes the sum."""
        found = self._buckets[index]
        if found is None:
            return self._reducer.start(index)
        bucket, values, sent = found
        bucket.encode(values, sent)
        return _Landing(self._reducer.start(index), lambda: bucket.decode(sent, values))

    def cancel(self, index: int) -> bool:
        """Take back a contribution, also from the wire, and return whether that was possible."""
        was_taken_back = self._reducer.cancel(index)
        found = self._buckets[index]
        if was_taken_back and found is not None:
            found[0].take_back()
        return was_taken_back

    def drop(self) -> None:
        """Drop the reducer's buckets; states of wires are forgotten."""
        self._buckets.clear()
        self._reducer.drop()

    def close(self) -> None:
        """Forget all buckets, and close the wrapped reducer."""
        self._buckets.clear()
        self._reducer.close()


class _LateBucket(NamedTuple):
    """Bucket of a LateReducer."""

    own: np.ndarray
    """Memory of the owner."""
    shared: list[np.ndarray]
    """Memory of each reducer."""
    first: int
    """Round in which it is started first."""
    is_exact: bool


def in_turns(reducers: Sequence[Reducer]) -> Reducer:
    """Return one reducer of several equal ones, which take turns; the only one as it is."""
    return reducers[0] if len(reducers) == 1 else LateReducer(reducers)


class LateReducer:
    """Reducer of buckets whose sums are taken `lag` rounds after they were given.

    Rounds take turns at as many reducers and one. All of them submit to one stream and follow one chooser, so that
    workers' collectives keep one order. Buckets of counts alone, or of anything else that must be exact, are not late.
    """

    takes_gpus = False

    def __init__(self, reducers: Sequence[Reducer]) -> None:
        """Wrap equal reducers, one more than rounds by which sums are late; the first takes the first round."""
        self._reducers = reducers
        self._lag = len(reducers) - 1
        self._number = 0
        """Number of the round that is under way."""
        self._buckets: list[_LateBucket] = []
        self._flights: dict[tuple[int, int], Flight] = {}
        """Last flight of each reducer's bucket."""
        self._begun: set[int] = set()
        """Buckets that were started in the round that is under way."""

    @property
    def rounds(self) -> Rounds | None:
        """Part that is told of rounds: this reducer."""
        return self

    @property
    def timer(self) -> "PassTimer | None":
        """Timer of the first reducer."""
        return self._reducers[0].timer

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions of the first reducer."""
        return self._reducers[0].dual_sync

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first, in this worker's own memory."""
        shared = [
            reducer.memory_of(descriptor._replace(name=name_in_turn(descriptor.name, turn)))
            for turn, reducer in enumerate(self._reducers)
        ]
        own = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        self._buckets.append(_LateBucket(own, shared, self._number, num_exact == descriptor.num_elements))
        return own

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Refuse a bucket on a GPU: late sums take no GPU's memory."""
        raise AssertionError("a bucket whose sums are late lies on the host")

    def start(self, index: int) -> Flight:
        """Start a bucket; the flight brings an earlier round's sum, or zeros before there is one."""
        turn, (own, shared, first, is_exact) = self._turn(self._number), self._buckets[index]
        if index in self._begun:
            raise InFlightError(
                f"another gradient came for bucket {index} after it was sent, and its sum comes {self._lag} rounds "
                "late; count all backward passes in backward_passes_per_step"
            )
        self._begun.add(index)
        shared[turn][...] = own
        begun = self._flights[turn, index] = self._reducers[turn].start(index)
        if is_exact:
            return _Landing(begun, lambda: np.copyto(own, shared[turn]))
        if self._number < first + self._lag:
            return _Landing(None, lambda: own.fill(0))
        late = self._turn(self._number - self._lag)
        return _Landing(self._flights[late, index], lambda: np.copyto(own, shared[late]))

    def cancel(self, index: int) -> bool:
        """Take back a contribution of this round, and return whether that was possible."""
        was_taken_back = self._reducers[self._turn(self._number)].cancel(index)
        if was_taken_back:
            self._begun.discard(index)
        return was_taken_back

    def all_started(self) -> None:
        """Tell the reducer of this round that every bucket has been started."""
        if (rounds := self._reducers[self._turn(self._number)].rounds) is not None:
            rounds.all_started()

    def begin_round(self) -> None:
        """Begin the next round, in which the reducer whose sums were taken has its turn."""
        if self._number >= self._lag and (rounds := self._reducers[self._turn(self._number + 1)].rounds) is not None:
            rounds.begin_round()
        self._begun.clear()
        self._number += 1

    def drop(self) -> None:
        """Wait for sums that were not taken, and forget them."""
        self._land()
        for reducer in self._reducers:
            reducer.drop()

    def close(self) -> None:
        """Drop all, and close the reducers."""
        self._land()
        for reducer in self._reducers:
            reducer.close()

    def _land(self) -> None:
        """Wait for all started buckets, and forget them."""
        for flight in self._flights.values() if is_initialized() else ():
            flight.wait()
        self._flights.clear()
        self._begun.clear()
        self._buckets.clear()
        self._number = 0

    def _turn(self, number: int) -> int:
        return number % len(self._reducers)


class _Landing:
    """Flight with an action that is done once when it has landed."""

    def __init__(self, flight: Flight | None, land: Callable[[], object]) -> None:
        """Take a flight and its action; without a flight, it has landed."""
        self._flight = flight
        self._land = land
        self._has_landed = False

    def wait(self) -> None:
        if self._flight is not None:
            self._flight.wait()
        if not self._has_landed:
            self._land()
            self._has_landed = True
