"""Mailbox in emulated time: messages go through the fabric, and arrive when the machine's model says.

[Note: holds] An endpoint that keeps something for later keeps its moment, too: emulated time goes no further until it
has been submitted. So copies of a GPU, or a chunk whose bytes are still on their way by MPI, come in time.
"""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from coarse.emulation.envelope import NUMBER_BYTES, FabricDelivery, FabricPort, KeyPlaces, Submission, unpack_delivery
from coarse.emulation.failure import fabric_error
from coarse.emulation.horizon import Word, signed
from coarse.protocol.codec import decode, encode, feature_of, is_of_feature
from coarse.protocol.costs import Cost, Way, cost_of
from coarse.protocol.features import costs_of
from coarse.protocol.joint import Joint, Meeting, pack_call
from coarse.protocol.plan import Placement
from coarse.protocol.records import Died, Push, Ready, Record
from coarse.proxy.costs import RECORD_COSTS, Told
from coarse.transport.mailbox import Mailbox

Then = Callable[[float], None]
"""Function of the emulated time at which something is over."""
_TAKEN, _BOUND = 1, 2
"""Word offsets within an endpoint's status block, beside its asleep mark: see horizon.py."""


def _no_sizes(_: Record, __: int) -> None:
    """Return None as sizes of records that cost nothing."""


class EmulatedMailbox(Mailbox):
    """Mailbox of one endpoint; the fabric is one endpoint more.

    `now_s` is the emulated time of the present action: of a device that of the record which was handed out last, of a
    worker its own clock. Messages that are sent begin then.
    """

    def __init__(
        self,
        endpoint: int,
        num_endpoints: int,
        peers: tuple[int, ...],
        control: memoryview,
        run: str,
        *,
        placement: Placement,
    ) -> None:
        """Open the mailbox; `num_endpoints` and `peers` count the fabric, which is the last endpoint."""
        super().__init__(endpoint, num_endpoints, peers, control, run)
        self._peers = peers
        self._fabric = num_endpoints - 1
        self._num_clients = placement.num_clients
        self._is_device = endpoint >= placement.num_clients
        self.places = KeyPlaces(endpoint, placement)
        """Facts of keys and their places, as far as records of them have passed."""
        self.now_s = 0.0
        self._earlier = threading.local()
        """Moment of `as_of`, in the thread that is within."""
        self._words = self._status[endpoint]
        self._bounds = self._words.cast("B").cast("d")
        self._num_taken = 0
        self._bound_s, self._listens = 0.0, False
        self._holds: Counter[float] = Counter()
        """Moments that are kept: see [Note: holds]."""
        self._publishing = threading.Lock()
        self._then: dict[int, Then] = {}
        """Functions that wait, by number, for the ends of this endpoint's submissions."""
        self._num_spent = 0
        self.on_message: Callable[[FabricDelivery], None] | None = None
        """Function that takes messages of other devices."""
        self.sizes_of: Callable[[Record, int], object] = _no_sizes
        """Function of (feature's record, endpoint that it is for) to the sizes that its costs need."""

    def watch_fabric(self, process_id: int, rank: int) -> None:
        """Let every wait end with FabricError, in the name of a rank, once the fabric process has ended."""
        self._fabric_process = process_id, rank
        self.watch(os.pidfd_open(process_id), self._fabric)

    # --- sending

    def send(self, peer: int, record: Record) -> None:
        """Send a record, which is there once the bytes that it announces are; shards travel one by one.

        A death is told at once, past the fabric: time may stand still for it.

        Raises:
            UnsupportedError: no cost is stated of the record.
        """
        if isinstance(record, Died):
            super().send(peer, record)
        elif is_of_feature(record):
            cost = cost_of(costs_of(feature_of(record)), record, self.sizes_of(record, peer))
            self._submit_cost(cost, peer, record, 0)
        elif isinstance(record, Ready) or (isinstance(record, Push) and record.present):
            told = Told(self.places, peer if isinstance(record, Ready) else record.client)
            priority = self.places.descriptor(record.key).priority
            for shard in range(record.first, record.last):
                one = record._replace(first=shard, last=shard + 1)
                self._submit_cost(cost_of(RECORD_COSTS, one, told), peer, one, priority)
        else:
            self.places.note(record, peer)
            self._submit_cost(cost_of(RECORD_COSTS, record, Told(self.places, self.endpoint)), peer, record, 0)

    def _submit_cost(self, cost: Cost, peer: int, record: Record, priority: int) -> None:
        way, source, target = FabricPort.RECORD, 0, 0
        if cost.way is Way.PUSHES:
            way, source, target = FabricPort.PUSH, self.endpoint, cost.device
        elif cost.way is Way.PULLS:
            way, source, target = FabricPort.PULL, cost.device, peer
        else:
            assert cost.way is Way.NOTHING, f"a record that costs {cost}"
        self._submit(way, cost.amount, source, target, peer, encode(record), priority)

    def send_to_all(self, record: Record) -> None:
        """Send a record to all peers but the fabric."""
        for peer in self._peers[:-1]:
            self.send(peer, record)
        self.ring_bells()

    def send_message(
        self, way: FabricPort, nbytes: int, source: int, target: int, endpoint: int, frame: bytes, priority: int
    ) -> None:
        """Put bytes of a device on their way to another, which hears of them by `on_message`."""
        self._submit(way, nbytes, source, target, endpoint, frame, priority)

    def spend(
        self, way: FabricPort, nbytes: int, source: int, target: int, then: Then, *, at_s: float | None = None,
        priority: int = 0, content: bytes = b"",
    ) -> None:  # fmt: skip
        """Let something take its emulated time; this endpoint alone hears of its end.

        Args:
            way: Need of the submission.
            nbytes: Its bytes.
            source: Client or device index, as the way has it.
            target: Client or device index, as the way has it.
            then: Called with the emulated time at which it is over.
            at_s: Emulated time from which on it may begin; by default that of the present action.
            priority: Of several that wait at a port the largest goes first.
            content: More that the fabric has to know.
        """
        self._num_spent += 1
        self._then[self._num_spent] = then
        frame = self._num_spent.to_bytes(NUMBER_BYTES, "little") + content
        self._submit(way, nbytes, source, target, self.endpoint, frame, priority, at_s)

    def join(self, meeting: Meeting, joint: Joint, then: Then) -> None:
        """Make a call with other workers: see coarse.protocol.joint; `then` is as for `spend`."""
        self.spend(FabricPort.JOINT, 0, self.endpoint, 0, then, content=pack_call(meeting, joint))

    def _submit(
        self, way: FabricPort, nbytes: int, source: int, target: int, endpoint: int, frame: bytes, priority: int = 0,
        at_s: float | None = None,
    ) -> None:  # fmt: skip
        """Tell the fabric; `ring_bells` wakes it."""
        begin_s = self.at_s() if at_s is None else at_s
        submission = Submission(begin_s, nbytes, source, target, endpoint, way, priority, frame)
        self.post(self._fabric, submission.pack())

    # --- emulated time

    def at_s(self) -> float:
        """Return the emulated time at which messages of this thread begin."""
        earlier_s: float | None = getattr(self._earlier, "s", None)
        return self.now_s if earlier_s is None else earlier_s

    def moment_s(self) -> float:
        """Return the emulated time of the present action, at which time is held until `as_of` is left."""
        moment_s = self.at_s()
        self.hold(moment_s)
        return moment_s

    @contextlib.contextmanager
    def as_of(self, moment_s: float) -> Iterator[None]:
        """Let messages, within the context, begin at an emulated time, independent of other threads."""
        before_s = getattr(self._earlier, "s", None)
        self._earlier.s = moment_s
        try:
            yield
        finally:
            self._earlier.s = before_s
            self.release(moment_s)

    def go_back_to(self, moment_s: float) -> None:
        """Go on with an action that was held since a moment."""
        self.now_s = moment_s
        self.release(moment_s)

    def hold(self, moment_s: float) -> None:
        """Let emulated time go no further than a moment: see [Note: holds]."""
        with self._publishing:
            self._holds[moment_s] += 1

    def release(self, moment_s: float) -> None:
        """Give up a hold, if there is one of that moment."""
        with self._publishing:
            if moment_s not in self._holds:
                return
            self._holds[moment_s] -= 1
            if not self._holds[moment_s]:
                del self._holds[moment_s]
        if not self._is_device:  # a device publishes when it looks for records
            self._publish()

    def go_on_until(self, emulated_s: float) -> None:
        """Compute: submit nothing before then."""
        self.now_s = max(self.now_s, emulated_s)
        self._publish(self.now_s, listens=False)

    def begin_run(self) -> None:
        """Go on at 0, where emulated time begins anew: see FabricPort.RUN."""
        self.now_s = 0.0
        self._publish(0.0, listens=False)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Wait, within the context, by other means than the fabric, and submit nothing."""
        self._publish(float("inf"), listens=False)
        try:
            yield
        finally:
            self.go_on_until(self.now_s)

    def _publish(self, bound_s: float | None = None, *, listens: bool = False) -> None:
        """Publish the bound of submissions and the count of deliveries: see [Note: words] in horizon.py."""
        with self._publishing:
            if bound_s is not None:
                self._bound_s, self._listens = bound_s, listens
            if self._waiting.get(self._fabric):  # what was submitted has to be there first
                return
            bound_s = min(self._bound_s, min(self._holds, default=self._bound_s))
            word = signed(bound_s, listens=self._listens)
            if self._bounds[_BOUND] == word and self._words[_TAKEN] == self._num_taken:
                return
            self._bounds[_BOUND] = word
            self._words[_TAKEN] = self._num_taken
        with self._fence:
            pass
        self._ring(self._fabric)

    # --- reading

    def records(self) -> Iterator[Record]:
        """Yield records; `now_s` is then the time at which the record's bytes arrived."""
        if self._is_device:  # all that was read before has been answered
            self.ring_bells()
            self._publish(float("inf"), listens=True)
        for peer, frame in self.frames():
            if peer != self._fabric:
                yield decode(frame)
                continue
            self._num_taken += 1
            delivery = unpack_delivery(frame)
            self.now_s = delivery.due_s if self._is_device else max(self.now_s, delivery.due_s)
            if delivery.peer == self.endpoint:
                self._then.pop(int.from_bytes(delivery.frame[:NUMBER_BYTES], "little"))(delivery.due_s)
            elif delivery.way in (FabricPort.DEVICES, FabricPort.MESSAGES):
                assert self.on_message is not None
                self.on_message(delivery)
            else:
                record = decode(delivery.frame)
                self.places.note(record, delivery.peer)
                yield record

    def sleep(self, timeout_s: float) -> list[int]:
        """Sleep until something comes, while emulated time goes on.

        Raises:
            FabricError: the fabric process has ended.
        """
        self._publish(float("inf"), listens=True)
        return self._without_fabric(super().sleep(timeout_s))

    def take_ended(self) -> list[int]:
        """Return the ranks that have ended.

        Raises:
            FabricError: the fabric process has ended.
        """
        return self._without_fabric(super().take_ended())

    def _without_fabric(self, dead: list[int]) -> list[int]:
        if self._fabric in dead:
            raise fabric_error(*self._fabric_process)
        return dead


class FabricMailbox(Mailbox):
    """Mailbox of the fabric: it wakes up also when an endpoint's words have changed."""

    def __init__(self, num_endpoints: int, control: memoryview, run: str) -> None:
        super().__init__(num_endpoints, num_endpoints + 1, tuple(range(num_endpoints)), control, run)
        self._of_endpoints = [self._status[endpoint] for endpoint in range(num_endpoints)]
        self._bounds = [words.cast("B").cast("d") for words in self._of_endpoints]
        self._seen: list[Word] = []

    def word(self, endpoint: int) -> Word:
        """Return an endpoint's words, in the order of [Note: words] in horizon.py."""
        num_taken = self._of_endpoints[endpoint][_TAKEN]
        return num_taken, self._bounds[endpoint][_BOUND]

    def look(self) -> None:
        """Remember the present words, so that sleep ends once they differ."""
        self._seen = self._words()

    def _words(self) -> list[Word]:
        return [self.word(endpoint) for endpoint in range(len(self._of_endpoints))]

    def _has_frames(self) -> bool:
        return self._words() != self._seen or super()._has_frames()
