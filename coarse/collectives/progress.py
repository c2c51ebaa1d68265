"""Progress thread: the process's only caller of MPI apart from the computation; it runs jobs in order.

[Note: lanes] A job either does its work in one go, or is a generator that yields what it waits for. So jobs of one
lane run one after the other, and those of several lanes side by side: two groups with common members never wait
for each other in a circle, in any order of their use by members. Between two looks the thread sleeps, ever
longer up to half a millisecond: a wait inside MPI would take a core from the computation.

[Note: driving] A large message moves only while its sender is inside MPI, too, and so does the rest of a small one that
the network did not take at once. A job that waits for memory, or no job at all, would leave its peers without what it
has sent, and they in turn are waited for. So between looks the thread has MPI go on, and while idle a hundred times a
second.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable
from typing import TYPE_CHECKING

from coarse.client.link import DeviceLink, Due
from coarse.errors import CapacityError, DeadRankError, MismatchError, StallError

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.collectives.conditions import Condition

_LOOK_S, _GLANCE_S = 0.05, 0.001
"""Seconds between two looks of a wait for peers that have died, and seconds that a look takes."""
_NAMING_S = 1.0
"""Seconds by which the devices may know later than MPI who died."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 500e-6
_IDLE_PAUSE_S = 0.01
LEFT_S = 1.0
"""Seconds that a job that needs a worker that has shut down has to end by what that worker did before."""
_END_S = 2.0
"""Seconds that a closing process waits for a job that is inside MPI."""
_AGREED = (CapacityError, MismatchError)
"""Errors that all ranks of a job raise together, before it has moved anything."""

Conditions = Generator["Condition", None, None]
Job = Callable[[], Conditions | None]


class Pending:
    """Job that was submitted; `wait` ends when its arrays may be used again."""

    def __init__(
        self, thread: "ProgressThread", what: str, members: Collection[int] | None, due: Due | None = None
    ) -> None:
        self.what = what
        self.due = due
        """Emulated time that it takes."""
        self.members = members
        """Workers that it needs; None: all."""
        self.failure: BaseException | None = None
        """Error because of which it will never be done."""
        self.awaited: Condition | None = None
        """Event that the job waits for now; None if it has not begun."""
        self._is_done = False
        self._thread = thread
        self._callbacks: list[Callable[[Pending], None]] = []

    @property
    def is_over(self) -> bool:
        """True if it is done or has failed."""
        return self._is_done or self.failure is not None

    def is_done(self) -> bool:
        """Return whether it is done; raise the job's error if it has failed."""
        if self.failure is not None:
            raise self.failure
        return self._is_done

    def has_come(self) -> bool:
        """Return whether it is over in emulated time, too.

        The computing thread calls this.
        """
        return self.is_over and (self.due is None or self.failure is not None or self.due.has_come())

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once it is done.

        Raises:
            StallError: not done in time (None: stall_timeout_s); it may be waited for again.
            DeadRankError: a rank that it may need has died.
        """
        self._thread.wait(self, timeout_s)

    def when_over(self, callback: "Callable[[Pending], None]") -> None:
        """Call `callback(self)` once it is over: in the progress thread, or at once if it is over already.

        The callback must neither wait nor raise.
        """
        with self._thread.changed:
            if not self.is_over:
                self._callbacks.append(callback)
                return
        callback(self)

    def end(self, failure: BaseException | None) -> None:
        """End it, with an error if it has failed; its ProgressThread calls this."""
        with self._thread.changed:
            if self.is_over:
                return
            self._is_done, self.failure = failure is None, failure
            self.awaited = None
            callbacks, self._callbacks = self._callbacks, []
            self._thread.changed.notify_all()
        for callback in callbacks:
            callback(self)


class _Lane:
    """Jobs that run one after the other; the first of the queue is under way."""

    def __init__(self) -> None:
        self.queue: deque[tuple[Pending, Job]] = deque()
        self.waits: Conditions | None = None
        """Generator of the rest of the first job, if that has begun."""


class ProgressThread:
    """Thread that carries out jobs, lane by lane in the order in which they were submitted.

    [Note: lanes] has the reason. A job that lacks one of its ranks may wait for ever, or fail without the rank's
    name; only the link to the devices knows which rank has died or raised an error. Once a job has failed its lane
    has, since others of the lane would meet what is left of it; except by a CapacityError or MismatchError, which are
    agreed before anything moves.
    """

    def __init__(self, link: DeviceLink, name: str, drive: Callable[[], None] | None = None) -> None:
        """Start without jobs; the thread starts with the first.

        `drive` has MPI go on with what was begun, and doesn't wait; without it jobs do. [Note: driving] has the reason.
        """
        self.changed = threading.Condition()
        self._link = link
        self._drive = drive
        self._name = name
        self._lanes: dict[Hashable, _Lane] = {}
        self._failures: dict[Hashable, BaseException] = {}
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(
        self, lane: Hashable, job: Job, what: str, members: Collection[int] | None = None, due: Due | None = None
    ) -> Pending:
        """Carry a job out after all others of its lane; `what` names it in errors.

        `members` are the workers that it needs (None: all): once one of them has shut down, a waiting caller hears so.
        `due` is the emulated time that it takes.
        """
        pending = Pending(self, what, members, due)
        with self.changed:
            failure = _given_up(what) if self._is_closed else self._failures.get(lane)
            if failure is None:
                self._lanes.setdefault(lane, _Lane()).queue.append((pending, job))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                    self._link.note_thread(self._thread)
                self.changed.notify_all()
        if failure is not None:
            pending.end(failure)
        return pending

    def wait(self, pending: Pending, timeout_s: float | None) -> None:
        """Return once a job is done; Pending.wait has the errors."""
        due = pending.due
        with self._link.elsewhere() if due is None else due.awaited(pending, timeout_s):
            self._wait(pending, timeout_s)

    def _wait(self, pending: Pending, timeout_s: float | None) -> None:
        link = self._link
        limit_s = link.stall_timeout_s if timeout_s is None else timeout_s
        began_s = link.clock.now_s()  # or when the last look found everybody here
        deadline_s = began_s + limit_s
        with self.changed:
            is_over = self.changed.wait_for(lambda: pending.is_over, min(_LOOK_S, limit_s))
        while not is_over:
            if self._glance(pending):
                break
            now_s = link.clock.now_s()
            left = link.left_of(pending.members)
            if not left:
                began_s = now_s
            elif now_s >= began_s + LEFT_S:
                raise link.left_error(left, pending.what)
            if now_s >= deadline_s:
                raise self._stalled(pending, limit_s)
            with self.changed:
                is_over = self.changed.wait_for(lambda: pending.is_over, _LOOK_S)
        failure = pending.failure
        if failure is not None:
            if not isinstance(failure, (DeadRankError, *_AGREED)):
                link.wait_until(lambda: False, _NAMING_S if _is_of_mpi(failure) else 0.0)  # names the rank
            raise failure

    def _glance(self, pending: Pending) -> bool:
        """Return whether a job is over.

        Raises:
            DeadRankError: a rank has died, unless the job itself ends by an error of `_AGREED`.
        """
        try:
            return self._link.wait_until(lambda: pending.is_over, _GLANCE_S)
        except DeadRankError:
            with self.changed:  # who raised first has told the others all of it
                self.changed.wait_for(lambda: pending.is_over, _LOOK_S)
            if isinstance(pending.failure, _AGREED):
                return True
            raise

    def forget(self, lane: Hashable) -> None:
        """Drop a lane; a job that was submitted there and is not over will never be."""
        with self.changed:
            dropped = self._lanes.pop(lane, None)
            self._failures.pop(lane, None)
        if dropped is not None:
            _give_up(dropped)

    def close(self) -> None:
        """Take no more jobs, and give up what is under way."""
        with self.changed:
            self._is_closed = True
            lanes = list(self._lanes.values())
            self.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
        for lane in lanes:
            _give_up(lane)

    def _stalled(self, pending: Pending, limit_s: float) -> StallError:
        with self.changed:
            awaited = pending.awaited
        missing = awaited.missing() if awaited is not None else ()
        whom = f"; it lacks ranks {list(missing)}" if missing else ""
        return StallError(
            f"rank {self._link.protocol.client}: {pending.what} did not end within {limit_s:g} s{whom}; "
            "see what the other workers wait for, or raise stall_timeout_s",
            missing=missing,
        )

    # --- the thread

    def _run(self) -> None:
        """Run jobs until the close.

        An error that belongs to no job ends the process as one in the main thread does.
        """
        try:
            self._work()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)

    def _work(self) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            with self.changed:
                busy = [(name, lane) for name, lane in self._lanes.items() if lane.queue]
                if self._is_closed:
                    return
                if not busy:
                    self.changed.wait(_IDLE_PAUSE_S if self._drive is not None else None)
            if any([self._advance(name, lane) for name, lane in busy]):
                pause_s = _SHORTEST_PAUSE_S
                continue
            if self._drive is not None:
                self._drive()
            if busy:
                with self.changed:
                    self.changed.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _advance(self, name: Hashable, lane: _Lane) -> bool:
        """Go on with a lane's first job, and return whether it moved on."""
        with self.changed:
            if not lane.queue:
                return False
            pending, job = lane.queue[0]
        try:
            if lane.waits is None:
                lane.waits = job()
            elif pending.awaited is not None and not pending.awaited.is_over():
                return False
            if lane.waits is not None:
                pending.awaited = next(lane.waits)
                return True
        except StopIteration:
            pass
        except _AGREED as refused:
            _end_first(lane, pending, refused)
            return True
        except BaseException as failure:
            self._fail(name, lane, failure)
            return True
        del job  # with its arrays, which whoever waits may want to see freed
        _end_first(lane, pending, None)
        return True

    def _fail(self, name: Hashable, lane: _Lane, failure: BaseException) -> None:
        with self.changed:
            self._failures[name] = failure
            lane.waits = None
            given_up = [pending for pending, _ in lane.queue]
            lane.queue.clear()
        for pending in given_up:
            pending.end(failure)


def _end_first(lane: _Lane, pending: Pending, failure: BaseException | None) -> None:
    """End a lane's first job, of which nothing is left."""
    lane.waits = None
    if lane.queue and lane.queue[0][0] is pending:  # else the lane was forgotten
        lane.queue.popleft()
    pending.end(failure)


def _give_up(lane: _Lane) -> None:
    """End the jobs that a lane has left."""
    for pending, _ in list(lane.queue):
        pending.end(_given_up(pending.what))


def _given_up(what: str) -> StallError:
    return StallError(f"{what} was given up, since what it belongs to was closed")


def _is_of_mpi(failure: BaseException) -> bool:
    """Return whether MPI raised it, which doesn't name the rank that died."""
    return type(failure).__module__.startswith("mpi4py")
