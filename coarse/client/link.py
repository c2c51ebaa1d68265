"""A client's line to the devices: records out, records in, waiting, and noticing who has died.

[Note: one sleeper] Of several threads that wait, one sleeps at the doorbell and the others on a
condition: whoever reads tells all, since it may have read what another awaits. The doorbell wakes one
thread only, and who reads besides (in `done()`, say) rings it for the one that sleeps there.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from coarse.client.protocol import ClientProtocol, ToDevice
from coarse.errors import CoarseError, DeadRankError, StallError
from coarse.protocol.clock import Clock
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Died, Record
from coarse.transport.mailbox import Mailbox

if TYPE_CHECKING:  # an idle device has no use for it
    from coarse.protocol.joint import Joint, Meeting


class Flight(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Return once it is over."""
        ...


class Due(Protocol):
    """Emulated time that an operation takes beyond its time here."""

    def awaited(self, pending: "Awaitable", timeout_s: float | None) -> AbstractContextManager[None]:
        """Return a context that is entered once the time is over, or once `pending` has failed.

        Emulated time stands still within it.

        Raises:
            StallError: not over after `timeout_s`, in seconds that pass here (None: stall_timeout_s).
            DeadRankError: a rank that this worker may need is gone.
        """
        ...

    def has_come(self) -> bool:
        """Return whether the time is over."""
        ...


class Awaitable(Protocol):
    """Operation that a Due belongs to."""

    what: str
    failure: BaseException | None
    members: Collection[int] | None

    @property
    def is_over(self) -> bool:
        """Return whether it has been done, or has failed."""
        ...


FUTURES_THREADS = "coarse-futures"
"""Begin of the names of threads that run the callbacks of futures."""
_LONGEST_SLEEP_S = 0.1
_LONGEST_WRITE_S = 1.0
"""Seconds that a rank that ends waits for a thread that holds its rings."""


class DeviceLink:
    """One client's mailbox and protocol; `lock` guards both, and is free while a thread sleeps."""

    def __init__(
        self,
        protocol: ClientProtocol,
        placement: Placement,
        mailbox: Mailbox,
        clock: Clock,
        stall_timeout_s: float,
    ) -> None:
        self.protocol = protocol
        self.clock = clock
        self.job_clock = clock
        """Clock by which what the job does is timed; `clock` is for waits that last too long."""
        self.pace = 1.0
        """Seconds of `job_clock` for each that passes here."""
        self.point: Callable[[str], None] | None = None
        """Told of the points of a training step that an emulated job names its compute by; None in a live one."""
        self.touch: Callable[[int, int, float], None] | None = None
        """Told of bytes of device memory that the script has loaded and stored, and how many CPU seconds it took to
        count them, in an emulated job; None in a live one."""
        self.lock = threading.RLock()
        self.stall_timeout_s = stall_timeout_s
        self.reduced_bytes = 0
        """Number of bytes that this worker and the others have summed by MPI, past the devices."""
        self._placement = placement
        self._mailbox = mailbox
        self._arrived = threading.Condition(self.lock)
        self._num_listeners = 0
        """Threads that wait on the condition."""
        self._is_at_bell = False
        """True if a thread sleeps at the doorbell."""
        self._gone: Died | None = None
        """First peer whose process was noticed to be gone, or None."""
        self._dead: DeadRankError | None = None

    def ask(self, requests: list[ToDevice], tokens: list[int], what: str) -> list[Record]:
        """Send requests and wait for the answers that carry these tokens."""
        with self.lock:
            self.send(requests)
        answers = self.protocol.answers
        if not self.wait_until(lambda: all(token in answers for token in tokens), None):
            raise StallError(f"rank {self.protocol.client}: no device answered about {what}")
        return [answers.pop(token) for token in tokens]

    def tell(self, records: list[ToDevice]) -> None:
        """Send records that have no answer."""
        with self.lock:
            self.send(records)
            self.ring_bells()

    def flush(self) -> None:
        """Return once all that was sent lies in its readers' rings, however much it was."""
        self.wait_for(lambda: not self._mailbox.has_unsent, None, "room in a device's ring")

    def leave(self) -> None:
        """Say to all that this worker has shut down, and first who has died: it would be blamed for leaving.

        Nothing may be called afterwards.
        """
        with self.lock:
            self.look()
        self.hand_on_death()
        self.tell(self.protocol.leave())
        with contextlib.suppress(CoarseError):  # nobody reads any more
            self.flush()
        self._mailbox.set_left()
        self._mailbox.ring_bells()

    def warn_peers(self, text: str) -> None:
        """Tell every rank of the node that this one cannot go on."""
        self._tell_node(Died(self._placement.ranks[self.protocol.client], text))

    def hand_on_death(self) -> None:
        """Tell every rank of the node who has died, before this one ends for it: it would be blamed."""
        died = self.protocol.died or self._gone
        if died is not None:
            self._tell_node(died)

    def _tell_node(self, died: Died) -> None:
        """Write to every ring of the node, of which this rank is the one writer: another thread may be writing there.

        One that does not stop keeps this rank from saying more; then its end has to speak for itself.
        """
        if not self.lock.acquire(timeout=_LONGEST_WRITE_S):
            return
        try:
            self._mailbox.send_to_all(died)
        finally:
            self.lock.release()

    def knows_of_death(self) -> bool:
        """Return whether a rank has died, or has said that it cannot go on, as far as can be seen without waiting."""
        if self.lock.acquire(timeout=_LONGEST_WRITE_S):
            try:
                self.look()
            finally:
                self.lock.release()
        return self.has_failed

    def left_of(self, members: Collection[int] | None) -> tuple[int, ...]:
        """Return those of these workers (None: of all) that have shut down, in that order, as far as read."""
        return tuple(client for client in self.protocol.left if members is None or client in members)

    def left_error(self, left: Sequence[int], what: str) -> DeadRankError:
        """Return the error that an operation will never end, since it needs workers that have shut down."""
        rank = self._placement.ranks[left[0]]
        others = f", and later ranks {list(left[1:])} have" if left[1:] else ""
        return DeadRankError(
            f"rank {self.protocol.client}: {what} needs every worker, but rank {left[0]} (MPI rank {rank}) has shut "
            f"down{others}; let all ranks make equally many steps",
            rank=rank,
        )

    def obituaries(self) -> list[str]:
        """Return the names of the dead, as far as can be seen without waiting, of all that were not told to end."""
        self.read()
        ended = self._mailbox.take_ended()
        self._note_dead([peer for peer in ended if not self._mailbox.was_terminated(peer)])
        self._mailbox.set_terminated()
        try:
            self._require_all_alive()
        except DeadRankError as error:
            return [str(error)]
        return []

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait until something that the protocol notes has happened."""
        if not self.wait_until(is_done, timeout_s):
            raise StallError(f"rank {self.protocol.client}: waited too long for {what}")

    def send(self, records: list[ToDevice]) -> None:
        """Write records; their readers are woken by the next `ring_bells`."""
        for device, record in records:
            self._mailbox.send(self._placement.num_clients + device, record)

    def moment_s(self) -> float:
        """Return the time of what this thread does, for `send_as_of`."""
        return self._mailbox.moment_s()

    def send_as_of(self, moment_s: float, records: list[ToDevice]) -> None:
        """Write records of an earlier moment, which have had to wait; the lock is held."""
        with self._mailbox.as_of(moment_s):
            self.send(records)

    def ring_bells(self) -> None:
        """Wake the devices that sleep and have records to read."""
        self._mailbox.ring_bells()

    def read(self) -> None:
        """Take in what has come; the lock is held. See [Note: one sleeper]."""
        has_come = False
        for record in self._mailbox.records():
            self.protocol.on_record(record)
            has_come = True
        if has_come:
            self.tell_waiting()

    def tell_waiting(self) -> None:
        """Have all threads that wait look again: something may have come for them; the lock is held."""
        if self._is_at_bell:
            self._mailbox.ring_always(self._mailbox.endpoint)
        if self._num_listeners:
            self._arrived.notify_all()

    def look(self) -> None:
        """Take in what has come, and who has died, without waiting; the lock is held."""
        self.read()
        self._note_dead(self._mailbox.take_ended())

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Read records until something is so; False after the time. Sleeps without the GIL or the lock.

        Raises DeadRankError once a rank that this one may need is gone.
        """
        deadline_s = self.clock.now_s() + (self.stall_timeout_s if timeout_s is None else timeout_s)
        try:
            while True:
                with self.lock:
                    self.read()
                    if is_done():
                        return True
                    if self._gone is not None or self.protocol.died is not None:
                        self._require_all_alive()
                    self._mailbox.ring_bells()
                    left_s = deadline_s - self.clock.now_s()
                    if left_s <= 0:
                        return False
                    rest_s = min(left_s, _LONGEST_SLEEP_S)
                    if self._is_at_bell:
                        self._listen(rest_s)
                        continue
                    self._is_at_bell = True
                try:
                    if ended := self._mailbox.sleep(rest_s):
                        self._note_dead(ended)
                finally:
                    self._is_at_bell = False
        finally:
            if self._num_listeners:
                with self.lock:
                    self._arrived.notify()  # one takes the place at the doorbell

    def join(
        self, meeting: "Meeting", joints: "Sequence[Joint]", what: str, descriptor: Descriptor | None = None
    ) -> Due | None:
        """Tell of calls that this worker makes now with others, in the thread that makes them.

        Args:
            meeting: Where they meet.
            joints: The calls, one after the other.
            what: Name in errors and accounts.
            descriptor: Description of what all workers sum, if it has one.

        Returns:
            The emulated time that they take, all together; None in a live job.
        """
        return None

    def own_work(self, point: str | None = None) -> AbstractContextManager[None]:
        """Return a context within which what runs is coarse's own, and no compute of an emulated job's worker.

        `point` is a name of the point at which its compute stops.
        """
        return contextlib.nullcontext()

    def spend(self, feature: str, steps: Sequence[object], sizes: object) -> None:
        """Wait, in an emulated job, as long as steps of a feature's worker take by its costs, with their sizes."""

    def note_sizes(self, model: int, sizes_of: Callable[[int], object]) -> None:
        """Note (device) -> the sizes by which costs of records of a model are counted that it is told, by number."""

    def note_wait(self, point: str) -> None:
        """Note that a wait begins which an emulated job's account tells apart."""

    def note_end(self, what: str, members: tuple[int, ...]) -> None:
        """Note that a repeated part of these workers has ended here, for an emulated job's account.

        A wait for all begins then.
        """

    def note_mode(self, name: str, **options: object) -> None:
        """Note the mode in which groups of workers do something, for an emulated job's account."""

    def note_thread(self, thread: threading.Thread) -> None:
        """Note a thread that works for coarse alone: what it does is no compute."""

    def elsewhere(self) -> AbstractContextManager[None]:
        """Return a context within which this worker waits for others by other means than records."""
        return contextlib.nullcontext()

    def _listen(self, timeout_s: float) -> None:
        self._num_listeners += 1
        try:
            self._arrived.wait(timeout_s)
        finally:
            self._num_listeners -= 1

    def _note_dead(self, endpoints: list[int]) -> None:
        for endpoint in endpoints:
            if not self._mailbox.has_left(endpoint) and self._gone is None:
                self._gone = Died(self._placement.ranks[endpoint], f"{self._placement.describe(endpoint)} died")

    def _require_all_alive(self) -> None:
        """Raise DeadRankError for the rank that died first.

        A process that is gone may have ended because of another, and then it has said so before, which has been read.
        """
        died = self.protocol.died or self._gone
        if self._dead is None and died is not None:
            remedy = "restart the job from its last snapshot" + (", or without that rank" if died is self._gone else "")
            self._dead = DeadRankError(f"rank {self.protocol.client}: {died.text}; {remedy}", rank=died.rank)
        if self._dead is not None:
            raise self._dead

    @property
    def has_failed(self) -> bool:
        """True if a peer is known to be dead."""
        return self._gone is not None or self.protocol.died is not None
