"""Reducer of buckets that memory devices synchronise or the workers sum themselves (COARSE III-F)."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from coarse.parallel.data.pass_timer import PassTimer
from coarse.parallel.data.presence import Presence
from coarse.parallel.data.reducer import DeviceReducer, DualSync, Flight, QueuedFlight, Rounds
from coarse.session import is_initialized
from coarse.strategy.rounds import By, Round, WorkerRounds

if TYPE_CHECKING:  # they start MPI, which only init() may
    from collections.abc import Sequence

    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.protocol.records import Descriptor
    from coarse.runtime import Runtime


class Chooser(Protocol):
    """Chooser of the members that sum each bucket, with equal results on all workers."""

    @property
    def timer(self) -> PassTimer | None:
        """Timer of steps."""
        ...

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions so far."""
        ...

    def next_round(self, buckets: "Sequence[Descriptor]") -> Round:
        """Return the next round; called at a border between two rounds."""
        ...

    def restart(self) -> None:
        """Start anew: another set of workers trains from now on."""
        ...

    def close(self, num_buckets: int) -> None:
        """Give back the device memory that measuring keeps."""
        ...


class DualReducer(DeviceReducer):
    """Reducer that carries out WorkerRounds: buckets go to memory devices, or to the workers' all-reduce.

    All lie in device memory, so that a bucket goes either way without a copy.

    [Note: roll call] A worker that has joined takes no part in an all-reduce. So all workers say in each round of which
    they sum a part that they are there, and if one does not, all buckets of the round go to the devices.
    """

    def __init__(self, runtime: "Runtime", stream: "AllreduceStream", chooser: Chooser, prefix: str) -> None:
        super().__init__(runtime.require_client())
        self.timer = chooser.timer
        self._chooser = chooser
        self._stream = stream
        self._round = WorkerRounds()
        self._held: dict[int, QueuedFlight] = {}
        """Flight that was last held back, or waits for its turn among the workers, by bucket."""
        self._turns: deque[int] = deque()
        """Buckets of this round that the workers have still to sum, if they are not held back. This order never
        follows from the order in which gradients come."""
        self._presence = Presence(runtime, f"{prefix}round")
        self._join_round = self._client.protocol.join_round

    @property
    def rounds(self) -> Rounds | None:
        """Rounds that are to be told (`Reducer.rounds`)."""
        return self

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions so far (`Reducer.dual_sync`)."""
        return self._chooser.dual_sync

    def start(self, index: int) -> Flight:
        """Start a bucket (`Reducer.start`)."""
        self._notice_joins()
        if self._round.shares:
            self._presence.ask()
        out = self._round.on_ready(index)
        if out and out[0].by is By.DEVICES:
            return super().start(index)
        held = self._held[index] = QueuedFlight(f"bucket {index} sets out when all of its round have been started")
        if out:
            if index not in self._turns:  # it is started once more
                self._turns.append(index)
            self._take_turns()
        return held

    def _take_turns(self) -> None:
        """Submit buckets that the workers sum beside backward, as far as all before them are ready."""
        while self._turns and (queued := self._held.get(self._turns[0])) is not None and queued.started is None:
            index = self._turns.popleft()
            if self._presence.joined():
                queued.started = super().start(index)
            else:
                self._submit(index)

    def _submit(self, index: int) -> None:
        descriptor, _, array = self._buckets[index]
        self._client.count_push(descriptor)
        self._held[index].started = self._stream.submit(descriptor, array)

    def cancel(self, index: int) -> bool:
        """Take back a contribution (`Reducer.cancel`)."""
        return self._round.cancel(index)

    def all_started(self) -> None:
        """Send the buckets that were held back, after every bucket of the round has been started."""
        if not self._round.is_holding:
            return
        are_all_here = not self._presence.joined()
        for index, by in self._round.on_backward_end(are_all_here=are_all_here):
            if by is By.DEVICES:
                self._held[index].started = super().start(index)
            else:
                self._submit(index)

    def begin_round(self) -> None:
        """Begin the next round, as the chooser decides it."""
        self._presence.end()
        decided = self._chooser.next_round([descriptor for descriptor, *_ in self._buckets])
        self._round.begin(decided)
        self._held.clear()
        self._turns = deque(index for index, by in enumerate(decided.by) if by is By.WORKERS and not decided.hold_back)

    def drop(self) -> None:
        """Forget all buckets. The next round is the first of all, and everything in it goes to the devices."""
        if is_initialized() and self._buckets:
            self._chooser.close(len(self._buckets))
        self._chooser.restart()
        self._round = WorkerRounds()
        self._held.clear()
        self._turns.clear()
        super().drop()

    def close(self) -> None:
        """Close the reducer (`Reducer.close`)."""
        if is_initialized():
            self._presence.close()
        self._stream.close()
        self.drop()

    def _notice_joins(self) -> None:
        """Share nothing, and restart the chooser, if all workers have joined since.

        Each has joined after steps of its own number, so they count steps anew.
        """
        if self._join_round != self._client.protocol.join_round:
            self._join_round = self._client.protocol.join_round
            self._round.share_nothing()
            self._chooser.restart()
