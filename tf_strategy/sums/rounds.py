"""Synchronisations of this process, one after the other, as TensorFlow's graph operations call them.

[Note: one at a time] Operations that wait occupy threads of TensorFlow's executor, of which there may be one. So no two
synchronisations are under way at once (tf_strategy.sums.operations orders them), and none waits before all that this
process contributes has been pushed.

[Note: roll call] Keras runs the same program on every rank; where ranks come to differ (data that end earlier, a
callback that stops one of them, a metric read on one rank only) each would wait for what the others never push, or
worse, add up what does not belong together. So every synchronisation is numbered, and says what it is about.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coarse.client.handle import Handle
from coarse.errors import DeadRankError, MismatchError, StallError
from coarse.parallel.data.bucket_plan import hinted
from coarse.parallel.data.byte_stream import stream, stream_blobs
from coarse.parallel.data.choice import changes_sums, reducer_of, times_rounds
from coarse.parallel.data.reducer import DeviceReducer, Reducer
from coarse.protocol.clock import Clock, WallClock
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import URGENT, Descriptor
from tf_strategy import failures
from tf_strategy.sums.buffers import ReductionSite, pieces_of, streamed
from tf_strategy.sums.places import ProgramPlace, decoded, difference_of, told
from tf_strategy.sums.reduction import ReducedTensors, ResultPool

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.reducer import DualSync
    from coarse.runtime import Runtime

_FEW_BYTES = 4096
"""Bytes below which a reduction (of a metric, say) goes to the memory devices in every mode and by every policy."""
SAID_BYTES = 64
"""Largest bytes that a worker may add to its place."""
_BEFORE = 2
"""Number of int64 before those bytes: the place and the number of synchronisations so far."""


class Rounds:
    """Synchronisations whose methods all workers call in one order.

    After an error of one method, every method raises it at once: the other workers may have half of this one's part, so
    that a second try would add up data that do not belong together.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._lock = threading.RLock()
        self._roll = DeviceRows(runtime)
        self._sites: dict[ReducedTensors, ReductionSite] = {}
        self._current: ReductionSite | None = None
        self._pool = ResultPool()
        self.num_workers = runtime.placement.num_clients
        assert runtime.client_index is not None
        self.rank = runtime.client_index
        self.bucket_bytes = runtime.config.bucket_bytes
        self.tells_gradients = changes_sums(runtime.strategy)
        """True if the job's strategy treats gradients differently from other sums."""
        self.recorder: Recorder | None = None
        """Recorder of pushes and takes of buckets, if any."""

    # --- sums, bucket by bucket

    @failures.noted
    def push(
        self, tensors: ReducedTensors, bucket: int, arrays: Sequence[np.ndarray], first_ago_s: float = 0.0
    ) -> None:
        """Contribute the tensors of one bucket; the first push of any bucket begins the round.

        The first of the tensors was there `first_ago_s` before.
        """
        with self._lock:
            site = self._site(tensors)
            if self._current is None:
                self._current = site
                self._roll.begin(tensors.place)
        assert self._current is site, "another synchronisation is under way"
        timer = site.reducer.timer
        if timer is not None and timer.is_running:
            timer.on_gradient(first_ago_s)
            timer.on_gradient()
            timer.on_bucket(bucket)
        with self._recorded("push", site, bucket):
            site.fill(bucket, arrays)
            with self._lock:
                site.flights[bucket] = site.reducer.start(bucket)

    @failures.noted
    def take(self, tensors: ReducedTensors, bucket: int) -> list[np.ndarray]:
        """Return the results of one bucket, in shape, in storage types.

        Buckets are taken in order once all were pushed.
        """
        site = self._sites[tensors]
        with self._recorded("take", site, bucket):
            if bucket == 0:
                self._roll.meet()
                if (rounds := site.reducer.rounds) is not None:
                    rounds.all_started()
            site.flights[bucket].wait()
            results = [
                self._pool.copy_of(flat).reshape(tensors.shapes[number])
                for number, flat in zip(site.members[bucket], site.results(bucket), strict=True)
            ]
        if bucket == site.num_buckets - 1:
            self._end(site)
        return results

    def is_timed(self, tensors: ReducedTensors) -> bool:
        """Return whether the times of these tensors may be wanted."""
        return tensors.nbytes >= _FEW_BYTES and times_rounds(self._runtime, self._runtime.strategy)

    @property
    def dual_sync(self) -> "DualSync | None":
        """Measurements and decision for the largest of the timed sums; None before that."""
        timed = [site for tensors, site in self._sites.items() if self.is_timed(tensors)]
        largest = max(timed, key=lambda site: site.tensors.nbytes, default=None)
        return None if largest is None else largest.reducer.dual_sync

    def _site(self, tensors: ReducedTensors) -> ReductionSite:
        with self._lock:
            if tensors not in self._sites:
                self._meet(tensors.place)  # keys that others never use would be waited for until time is up
                runtime, plans = self._runtime, tensors.plans(self.bucket_bytes)
                plans = hinted(plans, runtime.strategy, runtime.placement.cluster, runtime.facts)
                self._sites[tensors] = ReductionSite(tensors, plans, self._reducer_of(tensors))
            return self._sites[tensors]

    def _reducer_of(self, tensors: ReducedTensors) -> Reducer:
        if tensors.nbytes < _FEW_BYTES and tensors.exact is None:
            return DeviceReducer(self._runtime.require_client())
        return reducer_of(self._runtime, f"tensorflow/{tensors.fingerprint:x}/", as_it_is=tensors.exact is None)

    def _recorded(self, kind: str, site: ReductionSite, bucket: int) -> AbstractContextManager[None]:
        recorder = self.recorder
        return nullcontext() if recorder is None else recorder.during(kind, bucket, site.nbytes_of(bucket))

    def _end(self, site: ReductionSite) -> None:
        with self._lock:
            self._current = None
        if (rounds := site.reducer.rounds) is not None:
            rounds.begin_round()
        timer = site.reducer.timer
        if timer is not None and timer.is_running:
            timer.on_stepped()

    # --- tensors of any shape

    @failures.noted
    def reduce(self, tensors: ReducedTensors, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sums or means of all tensors at once, in shape; no memory is kept for their shapes."""
        self._meet(tensors.place)  # keys that others do not push would be waited for until time is up
        return streamed(self._runtime.require_client(), pieces_of(tensors), arrays)

    # --- bytes from one or all

    @failures.noted
    def broadcast(self, array: np.ndarray, what: str) -> np.ndarray:
        """Return rank 0's bits of an array that has one shape and type on all ranks; `what` names it in errors."""
        place = ProgramPlace(what, (f"{array.dtype}{list(array.shape)}",))
        result = np.array(array, order="C")
        flat = result.reshape(-1).view(np.uint8)
        if flat.nbytes <= SAID_BYTES:
            self._meet(place, flat.tobytes())
            flat[:] = self._roll.said(0, flat.nbytes)
        else:
            self._meet(place)
            stream([flat], 0, "tensorflow/broadcast")
        return result

    @failures.noted
    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return every rank's array, in order of rank; they may differ in the first extent."""
        self._meet(ProgramPlace("each of the gathered rows", (f"{array.dtype}{list(array.shape[1:])}",)))
        blobs = stream_blobs(np.ascontiguousarray(array).tobytes(), "tensorflow/gather")
        return [np.frombuffer(blob, array.dtype).reshape(-1, *array.shape[1:]) for blob in blobs]

    def _meet(self, place: ProgramPlace, said: bytes = b"") -> None:
        assert self._current is None, "another synchronisation is under way"
        self._roll.begin(place, said)
        self._roll.meet()


class DeviceRows:
    """Vector in device memory in which every worker writes its place; see [Note: roll call]."""

    def __init__(self, runtime: "Runtime") -> None:
        assert runtime.client_index is not None
        self._client = runtime.require_client()
        self._rank = runtime.client_index
        shape = (runtime.placement.num_clients, _BEFORE + SAID_BYTES // 8)
        self._descriptor = Descriptor("tensorflow/roll", int(DType.INT64), int(Op.SUM), shape, URGENT)
        self._rows = self._client.host_array(self._descriptor)
        self._handle: Handle | None = None
        self._place = ProgramPlace("nothing")
        self.number = 0
        """Synchronisations begun so far."""

    def begin(self, place: ProgramPlace, said: bytes = b"") -> None:
        """State this worker's synchronisation, and at most SAID_BYTES more; `meet` waits for the others."""
        self.number += 1
        self._place = place
        self._rows[:] = 0
        mine = self._rows[self._rank]
        mine[:_BEFORE] = (place.fingerprint, self.number)
        mine[_BEFORE:].view(np.uint8)[: len(said)] = np.frombuffer(said, np.uint8)
        self._handle = self._client.push_pull(self._descriptor, None, self._rows)

    def meet(self) -> None:
        """Return once all workers are here.

        Raises:
            MismatchError: they are at different points (on all workers).
            StallError: some have not come in time, which it names.
            DeadRankError: some have ended.
        """
        assert self._handle is not None
        try:
            self._handle.wait()
        except (StallError, DeadRankError) as error:
            raise told(error, self._rank, f"synchronisation {self.number}, {self._place}") from None
        places = self._rows[:, :_BEFORE]
        if (places != places[0]).any():
            blobs = stream_blobs(self._place.encoded, "tensorflow/at")
            said = difference_of([decoded(blob) for blob in blobs])
            raise MismatchError(f"rank {self._rank}: at synchronisation {self.number} {said}")

    def said(self, rank: int, nbytes: int) -> np.ndarray:
        """Return the (nbytes,) uint8 that a rank stated, valid until the next `begin`."""
        return self._rows[rank, _BEFORE:].view(np.uint8)[:nbytes]


@dataclass(frozen=True, kw_only=True)
class BucketTransfer:
    """One call from TensorFlow into coarse, with times in seconds of the recorder's clock."""

    kind: str
    """Either "push" (copy of a bucket's tensors into its memory) or "take" (wait for its results, and their copy)."""
    bucket: int
    nbytes: int
    begin_s: float
    end_s: float


class Recorder:
    """Transfers since it was made, in the order in which they ended. They tell how much of them backward hides."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Record by `clock`, by default the system's monotonic one, which all processes of a node share."""
        self._clock = clock or WallClock()
        self.transfers: list[BucketTransfer] = []

    @contextmanager
    def during(self, kind: str, bucket: int, nbytes: int) -> Iterator[None]:
        """Record the block, unless it fails."""
        begin_s = self._clock.now_s()
        yield
        end_s = self._clock.now_s()
        self.transfers.append(BucketTransfer(kind=kind, bucket=bucket, nbytes=nbytes, begin_s=begin_s, end_s=end_s))
