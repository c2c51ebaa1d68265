"""Link of a worker to a machine that is not here, and its emulated clock.

[Note: own work] A worker's clock stands at the emulated time at which it left coarse last, and the CPU time that it
spends until it enters again is added then. Within coarse no compute counts: a wait ends at the later of its begin and
of the event that it waits for.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from coarse.client.link import FUTURES_THREADS, Awaitable, DeviceLink, Due
from coarse.client.protocol import ClientProtocol
from coarse.emulation.absences import mark_own
from coarse.emulation.account import Push, Waited, WorkerLog
from coarse.emulation.compute import ComputeClock, Stretches
from coarse.emulation.envelope import FabricPort
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.errors import StallError, UnsupportedError
from coarse.protocol import override
from coarse.protocol.clock import Clock
from coarse.protocol.costs import Way, cost_of
from coarse.protocol.features import costs_of
from coarse.protocol.joint import ANYBODY, COMM_WORLD, OWN_GROUP, CollectiveKind, Joint, Meeting
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Record

_WITHOUT_POINT = (CollectiveKind.BARRIER, CollectiveKind.MEET)
"""Kinds of calls at which compute has no point that a file of its times would know. Other modes do without them."""
_POLL_S = 10e-6
"""Emulated seconds of a look at something that is not there, so that loops of looks end."""


class WorkerClock:
    """Emulated clock of one worker's process: see [Note: own work]."""

    def __init__(self, box: EmulatedMailbox, compute: ComputeClock, stretches: Stretches) -> None:
        self._box = box
        self._compute = compute
        self._stretches = stretches
        self.pace = 1.0 / compute.scale if stretches.given is None else 0.0
        """Emulated seconds of compute for each that passes here."""
        self._depth = self._num_waits = 0
        self.computed_s = self.waited_s = self.left_s = 0.0
        self.on_stretch: Callable[[float], None] | None = None
        """Function that is told of each stretch of compute that has ended, with its begin."""
        self.on_waited: Callable[[float, float], None] = lambda began_s, ended_s: None
        """Function that is told of each wait, when it has ended."""

    def now_s(self) -> float:
        """Return the emulated time, with the compute since coarse was left."""
        return self._box.now_s + (self._compute.peek() if self._stretches.given is None else 0.0)

    def times(self) -> tuple[float, float, float, float]:
        """Return now, the compute and waits by now, and the end of the last wait."""
        return self.now_s(), self.computed_s, self.waited_s, self.left_s

    @property
    def is_within(self) -> bool:
        """True if coarse is at work, and no compute counts."""
        return self._depth > 0

    @contextlib.contextmanager
    def own_work(self, point: str | None = None) -> Iterator[None]:
        """Count no compute within the context, where coarse works.

        `point` is the name of the point at which compute has stopped.
        """
        self._depth += 1
        if self._depth == 1:
            began_s = self._box.now_s
            seconds = self._stretches.pass_time(self._compute.stop(), point)
            self.computed_s += seconds
            self._box.now_s += seconds
            if self.on_stretch is not None:
                self.on_stretch(began_s)
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._box.go_on_until(self._box.now_s)
                self._compute.start()

    def forget(self, cpu_s: float) -> None:
        """Count no compute of so many CPU seconds of the stretch so far."""
        self._compute.forget(cpu_s)

    def leave_out(self, thread: threading.Thread) -> None:
        """Count no compute of a thread that works for coarse alone."""
        self._compute.leave_out(thread)

    def begin_run(self) -> None:
        """Begin emulated time anew."""
        self._stretches.begin()
        self.computed_s = self.waited_s = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count time within the context, where this worker waits, as exposed and as no compute."""
        with self.own_work("wait"):
            began_s = self._box.now_s
            self._num_waits += 1
            try:
                yield
            finally:
                self._num_waits -= 1
                if not self._num_waits:  # else it is a part of another wait
                    self.left_s = self._box.now_s
                    self.waited_s += self.left_s - began_s
                    self.on_waited(began_s, self.left_s)


class EmulatedLink(DeviceLink):
    """Link of a worker to the devices, in emulated time."""

    def __init__(
        self,
        protocol: ClientProtocol,
        placement: Placement,
        box: EmulatedMailbox,
        clock: Clock,
        stall_timeout_s: float,
        worker_clock: WorkerClock,
        log: WorkerLog,
    ) -> None:
        super().__init__(protocol, placement, box, clock, stall_timeout_s)
        self._box = box
        self.worker_clock = self.job_clock = worker_clock
        self.pace = worker_clock.pace
        self.point = self._pass_point
        self._touched = [0, 0]
        """Bytes loaded and stored since the last stretch of compute began."""
        self._log = log
        worker_clock.on_waited = lambda *wait: log.exposed.append(wait)
        self._is_held = False
        self._num_calls: Counter[str] = Counter()
        """Number of joint calls since the optimizer's last step, by their kind."""
        self._sizes_of: dict[int, Callable[[int], object]] = {}
        """Functions of a device that return sizes for messages to it, by number of a model."""
        box.sizes_of = self._sizes_for
        self._own_threads: set[threading.Thread] = set()
        """Threads that work for coarse alone: these have no emulated time."""

    def note(self, descriptor: Descriptor, *, is_workers: bool) -> None:
        """Note the begin of something that devices, or the workers, sum."""
        self._log.note(
            Push(
                *self.worker_clock.times(), descriptor.name, descriptor.num_elements, descriptor.dtype, descriptor.op,
                is_workers,
            )
        )  # fmt: skip

    @override
    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        if threading.current_thread() in self._own_threads:
            return super().wait_until(is_done, timeout_s)
        with self.worker_clock.waiting():
            return super().wait_until(is_done, timeout_s)

    def join(
        self, meeting: Meeting, joints: Sequence[Joint], what: str, descriptor: Descriptor | None = None
    ) -> Due:
        """Begin a joint call, which is over once it would be on the machine and has been done here."""
        if meeting is ANYBODY:
            raise UnsupportedError(
                f"rank {self.protocol.client}: emulation has to know whom a message comes from; name the sender in "
                "place of any rank, or leave out --machine"
            )
        if threading.current_thread().name.startswith(FUTURES_THREADS):
            raise UnsupportedError(
                f"rank {self.protocol.client}: {what} is called from a future's callback, at a time that emulation "
                "cannot tell; call it from the training's own thread, or leave out --machine"
            )
        name = f"push {descriptor.name}" if descriptor is not None else self._numbered(what)
        is_point = any(joint.kind not in _WITHOUT_POINT for joint in joints)
        point = "wait" if descriptor is not None else f"wait {name}"
        due = _Joined(self, point if is_point else None, len(joints), is_alone=len(meeting.members) == 1)
        with self.worker_clock.own_work(name if is_point else None), self.lock:
            if descriptor is not None:
                self.note(descriptor, is_workers=True)
            else:
                self._note_calls(name, joints, meeting)
            for joint in joints:
                self._box.join(meeting, joint, due.on_ended)
            self.ring_bells()
        return due

    def _numbered(self, what: str) -> str:
        """Return a name that no other call has since the optimizer's last step."""
        self._num_calls[what] += 1
        number = self._num_calls[what]
        return what if number == 1 else f"{what} {number}"

    @contextlib.contextmanager
    def within_world(self, name: str, is_of_all: bool) -> Iterator[None]:
        """Count time within the context, where the script waits in a collective of MPI's own.

        That moves bytes that have no emulated time.
        """
        if threading.current_thread() is not threading.main_thread() or self.worker_clock.is_within:
            yield
            return
        what = f"MPI.COMM_WORLD.{name}"
        self._log.not_charged[what] += 1
        if not is_of_all:
            with self.elsewhere():
                yield
            return
        meeting = Meeting(tuple(range(self._placement.num_clients)), COMM_WORLD)
        due = self.join(meeting, (Joint(CollectiveKind.MEET),), what)
        with due.awaited(_Blocking(what), None):
            yield

    def _note_calls(self, name: str, joints: Sequence[Joint], meeting: Meeting) -> None:
        for joint in joints:
            if joint.kind is CollectiveKind.MEET:
                continue
            self._log.note(Push.of_call(*self.worker_clock.times(), name, joint, meeting))

    def charge_touches(self, device: int) -> None:
        """Have loads and stores of a device's memory take their time, of which compute hides what it can."""
        self.touch = self._note_touch
        self.worker_clock.on_stretch = partial(self._await_touches, device)

    def _note_touch(self, loaded: int, stored: int, cpu_s: float) -> None:
        self._touched[0] += loaded
        self._touched[1] += stored
        self.worker_clock.forget(cpu_s)

    def _await_touches(self, device: int, began_s: float) -> None:
        """Wait for the bytes that the stretch of compute begun then has touched.

        They take the rates of bulk loads and stores.
        """
        ended: list[float] = []
        touched, self._touched = self._touched, [0, 0]
        ways = [(way, n) for way, n in zip((FabricPort.LOAD, FabricPort.STORE), touched, strict=True) if n]
        if not ways:
            return
        self._log.touched += np.array(touched)
        with self.worker_clock.waiting():
            with self.lock:
                for way, nbytes in ways:
                    self._box.spend(way, nbytes, self.protocol.client, device, ended.append, at_s=began_s)
                self.ring_bells()
            if not super().wait_until(lambda: len(ended) == len(ways)):
                raise StallError(f"rank {self.protocol.client}: waited too long for loads and stores of device memory")

    def note_wait(self, point: str) -> None:
        """Note the begin of a wait for joint calls."""
        self._log.note_wait(Waited(self.worker_clock.now_s(), self.worker_clock.computed_s, point))

    @override
    def own_work(self, point: str | None = None) -> contextlib.AbstractContextManager[None]:
        return self.worker_clock.own_work(point)

    def spend(self, feature: str, steps: Sequence[object], sizes: object) -> None:
        """Let the steps of a feature take their time: the worker's port takes one after the other."""
        costs = [cost_of(costs_of(feature), step, sizes) for step in steps]
        ended: list[float] = []
        with self.worker_clock.waiting():
            with self.lock:
                for cost in costs:
                    assert cost.way is Way.PULLS, f"a worker's step that costs {cost}"
                    client = self.protocol.client
                    self._box.spend(FabricPort.PULL, cost.amount, cost.device, client, ended.append)
                self.ring_bells()
            self.wait_for(lambda: len(ended) == len(costs), None, f"{costs} to pass")

    @override
    def note_sizes(self, model: int, sizes_of: Callable[[int], object]) -> None:
        self._sizes_of[model] = sizes_of

    @override
    def note_end(self, what: str, members: tuple[int, ...]) -> None:
        with self.worker_clock.own_work():
            meeting = Meeting(members, OWN_GROUP)
            self._log.note(Push.of_call(*self.worker_clock.times(), what, Joint(CollectiveKind.MEET), meeting))
            self.note_wait(what)

    def _sizes_for(self, record: Record, endpoint: int) -> object:
        sizes_of = self._sizes_of.get(getattr(record, "model", -1))
        return None if sizes_of is None else sizes_of(endpoint - self._placement.num_clients)

    def note_mode(self, name: str, **options: object) -> None:
        """Note the mode; a sharded mode says more than the backend that it also uses."""
        if options or not self._log.mode:
            self._log.mode, self._log.options = name, options

    @override
    def note_thread(self, thread: threading.Thread) -> None:
        self._own_threads.add(thread)
        mark_own(thread)
        self.worker_clock.leave_out(thread)

    def _pass_point(self, name: str) -> None:
        if name == "step":
            self._num_calls.clear()
            self._log.note_step(self.worker_clock.now_s())
        with self.worker_clock.own_work(name):
            pass

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let emulated time go on while this worker waits elsewhere; the worker goes on at the later time."""
        if self._is_held:
            yield
            return
        with self.worker_clock.waiting():
            with self._box.away():
                yield
            self._spend(FabricPort.NOW)  # its clock has stood, and others' have not

    def compute(self, seconds: float) -> None:
        """Let emulated seconds of compute pass for this worker."""
        with self.worker_clock.own_work():
            self.worker_clock.computed_s += seconds
            self._box.go_on_until(self._box.now_s + seconds)

    def look_in_vain(self) -> None:
        """Let the moment pass that a look takes which finds nothing."""
        with self.worker_clock.waiting():
            self._box.go_on_until(self._box.now_s + _POLL_S)

    def begin_run(self) -> None:
        """Begin emulated time anew with all other workers."""
        self._spend(FabricPort.RUN, "the other workers")
        self._box.begin_run()
        self.worker_clock.begin_run()
        self._log.exposed.clear()

    def catch_up(self) -> None:
        """Return once all messages up to this worker's clock are here."""
        self._spend(FabricPort.TIMER)

    def _spend(self, way: FabricPort, whom: str = "the emulated machine") -> None:
        """Return once the fabric has answered; `whom` is the name of the party that is waited for."""
        here: list[float] = []
        with self.lock:
            self._box.spend(way, 0, self.protocol.client, 0, here.append)
            self.ring_bells()
        self.wait_for(lambda: bool(here), None, whom)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let emulated time, within the context, go no further than this worker's clock, though it waits."""
        moment_s = self._box.moment_s()
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._box.go_on_until(moment_s)  # or it would be known as one that listens
            self._box.release(moment_s)


class _Blocking:
    """Call of MPI's own that is under way while this thread is within it."""

    failure: BaseException | None = None
    members: Collection[int] | None = None
    is_over = False

    def __init__(self, what: str) -> None:
        self.what = what


class _Joined:
    """Joint calls of this worker: the machine's time first, then the work here, which all have begun."""

    def __init__(self, link: EmulatedLink, point: str | None, num_calls: int, *, is_alone: bool) -> None:
        """Begin with all calls left.

        `point` is the name of the point at which compute stops for them. With `is_alone` no other worker takes part.
        """
        self._is_alone = is_alone
        self._link = link
        self._point = point
        self._num_left = num_calls

    def on_ended(self, _: float) -> None:
        """Note that one of the calls would be over on the machine."""
        self._num_left -= 1

    @contextlib.contextmanager
    def awaited(self, pending: Awaitable, timeout_s: float | None) -> Iterator[None]:
        """Wait until the time is over or `pending` has failed, and hold emulated time within the context."""
        link = self._link

        def is_over() -> bool:
            has_left = not pending.is_over and link.left_of(pending.members)
            return self._num_left == 0 or pending.failure is not None or bool(has_left)

        with link.worker_clock.own_work(self._point):
            if self._point is not None and not self._is_alone:
                link.note_wait(self._point)
            link.wait_for(is_over, timeout_s, pending.what)
            with link.held():
                yield

    def has_come(self) -> bool:
        """Return whether the time is over; a look that finds nothing takes a moment."""
        with self._link.worker_clock.own_work():
            self._link.catch_up()
            if self._num_left:
                self._link.look_in_vain()
            return self._num_left == 0
