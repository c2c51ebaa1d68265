# Pure: no MPI, threads, clock or environment.
"""Links, adders and workers' joint calls of a modelled machine, by submissions: see horizon.py."""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from coarse.emulation.envelope import NUMBER_BYTES, FabricDelivery, FabricPort, Submission
from coarse.emulation.joints import JointCalls
from coarse.hardware.degradation import RateChange
from coarse.simulation.engine import Engine
from coarse.simulation.sites import Path, Site

Deliver = Callable[[int, FabricDelivery], bool]
"""Function that delivers to an endpoint, and returns whether that may react to it at once."""
_Pair = tuple[int, int]
"""Pair of endpoints: (endpoint that submits, endpoint that it is for)."""
_MOST_RECENT = 1 << 14
_Waiting = tuple[float, int, int, Submission]
"""Waiting submission: (emulated seconds, endpoint that submitted, number, submission). The least goes first, in any
order of reading."""


class _Parked(NamedTuple):
    """Record that waits for transfers of its pair which were submitted before it."""

    behind: set[int]
    submission: Submission


class Absence(NamedTuple):
    """Number of times that emulated time went on without a worker, which waited outside of emulation."""

    worker: int
    times: int
    place: str
    """Line of the script, the first time; "" if it is not known."""


class Charged(NamedTuple):
    """Transfer or other action that has taken emulated time."""

    way: str
    source: int
    target: int
    """Index of a worker or device, according to the way."""
    nbytes: int
    begin_s: float
    """Seconds since the run began, from when the port was free for it."""
    end_s: float


class FabricReport(NamedTuple):
    """Account of a run's transfers."""

    num_transfers: int
    num_late: int
    """Transfers that were submitted after their emulated time had passed."""
    worst_late_s: float
    link_bytes: tuple[float, ...]
    """Bytes that each link has carried since the run began, by its position."""
    absences: tuple[Absence, ...] = ()
    charged: tuple[tuple[str, int], ...] = ()
    """Bytes that were charged since the run began, by way: see FabricPort."""
    recent: tuple[Charged, ...] = ()
    """Last of the charged transfers, in the order of their ends."""


class FabricModel:
    """Model of the machine, advanced as far as the horizon."""

    def __init__(
        self, site: Site, worker_nodes: Sequence[int], deliver: Deliver, rate_changes: Sequence[RateChange] = ()
    ) -> None:
        """Begin at 0 with idle links; `worker_nodes` are of the modelled machine.

        `rate_changes` come true at seconds of the run, which begins when all workers say so (FabricPort.RUN).
        """
        self._site = site
        self._deliver = deliver
        self._rate_changes = rate_changes
        self._moves: list[_Waiting] = []
        self._records: list[_Waiting] = []
        self._numbers = count()
        self._limit_s = 0.0
        self._under_way: dict[_Pair, set[int]] = {}
        """Transfers of a pair that have not arrived."""
        self._parked: dict[_Pair, deque[_Parked]] = {}
        self._behind: dict[int, set[int]] = {}
        """Transfers that go before a record that was submitted and not handed on."""
        self._asking: list[tuple[int, Submission]] = []
        self._met: list[tuple[int, Submission]] = []
        """Workers that wait for all others."""
        self._worker_nodes = worker_nodes
        self._charged: Counter[FabricPort] = Counter()
        self._recent: deque[Charged] = deque(maxlen=_MOST_RECENT)
        self._free_s: dict[tuple[int, ...], float] = {}
        """End of a queue's last transfer."""
        self._begin_time(Engine(site.links))
        self._num_transfers = self._num_late = self._num_submitted = 0
        self._worst_late_s = 0.0

    def submit(self, peer: int, submission: Submission) -> None:
        """Take an endpoint's submission."""
        self._num_submitted += 1
        number, pair = next(self._numbers), (peer, submission.endpoint)
        if submission.way is FabricPort.RECORD:
            self._behind[number] = set(self._under_way.get(pair, ()))
            heapq.heappush(self._records, (submission.begin_s, peer, number, submission))
            return
        if submission.way is FabricPort.NOW:
            self._asking.append((peer, submission))
            return
        self._num_transfers += submission.way is not FabricPort.TIMER
        if submission.begin_s < self._engine.now_s and submission.way is not FabricPort.TIMER:
            self._num_late += 1
            self._worst_late_s = max(self._worst_late_s, self._engine.now_s - submission.begin_s)
        if peer != submission.endpoint:
            self._under_way.setdefault(pair, set()).add(number)
        heapq.heappush(self._moves, (submission.begin_s, peer, number, submission))

    def advance(self, horizon_s: float) -> None:
        """Let all happen before a time at which a submission may still come: see [Note: strictly before].

        Then answer the endpoints that have asked how late it is: the horizon may be one without them, who come back.
        """
        self._advance(horizon_s)
        asking, self._asking = self._asking, []
        for peer, submission in asking:
            self._hand_on(peer, submission, max(self._engine.now_s, submission.begin_s))

    def _advance(self, horizon_s: float) -> None:
        self._limit_s = horizon_s
        moves, records = self._moves, self._records
        while True:
            engine = self._engine
            move_s = moves[0][0] if moves else math.inf
            record_s = records[0][0] if records else math.inf
            until_s = math.nextafter(min(move_s, record_s), math.inf)
            engine.end_before(min(self._limit_s, until_s))
            engine.run()
            if records and record_s <= min(move_s, self._limit_s):
                _, peer, number, submission = heapq.heappop(records)
                self._take_record(record_s, peer, number, submission)
            elif moves and move_s < self._limit_s:
                _, peer, number, submission = heapq.heappop(moves)
                engine.at(max(move_s, engine.now_s), partial(self._begin, peer, number, submission))
            else:
                return

    @property
    def progress(self) -> tuple[int, int]:
        """Pair of numbers that change whenever anything has happened."""
        return self._num_submitted, self._engine.num_events

    @property
    def is_waiting(self) -> bool:
        """True if anything would happen if time went on."""
        return bool(self._moves or self._records or self._parked) or not self._engine.is_idle

    def report(self) -> FabricReport:
        """Return the account so far."""
        moved = tuple(float(self._engine.bytes_moved(link)) for link in range(len(self._site.links)))
        charged: Counter[str] = Counter()
        for way, nbytes in sorted(self._charged.items()):
            charged[way.label] += nbytes
        return FabricReport(
            self._num_transfers, self._num_late, self._worst_late_s, moved, charged=(*charged.items(),),
            recent=(*self._recent,),
        )  # fmt: skip

    # --- records without bytes

    def _take_record(self, record_s: float, peer: int, number: int, submission: Submission) -> None:
        pair = peer, submission.endpoint
        behind = self._behind.pop(number) & self._under_way.get(pair, set())
        parked = self._parked.get(pair)
        if behind or parked:
            self._parked.setdefault(pair, deque()).append(_Parked(behind, submission))
            return
        self._hand_on(peer, submission, max(record_s, self._engine.now_s))

    def _arrived(self, peer: int, number: int, submission: Submission) -> None:
        """Hand on a transfer that has come; records that were sent after it may follow."""
        self._hand_on(peer, submission, self._engine.now_s)
        pair = peer, submission.endpoint
        if pair in self._under_way:
            self._under_way[pair].discard(number)
        parked = self._parked.get(pair, deque())
        for each in parked:
            each.behind.discard(number)
        while parked and not parked[0].behind:
            self._hand_on(peer, parked.popleft().submission, self._engine.now_s)

    # --- all others

    def _begin(self, peer: int, number: int, submission: Submission) -> None:
        """Begin a submission, whose time has come."""
        arrived = partial(self._ended, peer, number, submission, self._engine.now_s)
        match submission.way:
            case FabricPort.ADDER:
                seconds = submission.nbytes / self._site.adder_bytes_per_s
                self._engine.work(("adder", submission.source), seconds, arrived)
            case FabricPort.JOINT:
                nbytes = self._joints.submit(peer, submission)
                self._charged[submission.way] += nbytes
                self._joint_bytes[peer, submission.frame[:NUMBER_BYTES]] = nbytes
            case FabricPort.MEET | FabricPort.RUN:
                self._meet(peer, submission)
            case FabricPort.TIMER:
                self._arrived(peer, number, submission)
            case way:
                port = way.queue(submission.source, submission.target)
                path, nbytes = self._path(submission), submission.nbytes
                self._engine.move(port, path, nbytes, arrived, priority=submission.priority)

    def _ended(self, peer: int, number: int, submission: Submission, began_s: float) -> None:
        """Note that bytes have taken their time."""
        _, nbytes, source, target, _, way, _, _ = submission
        now_s, queue = self._engine.now_s, way.queue(source, target)
        begin_s = min(now_s, max(began_s, self._free_s.get(queue, 0.0)))
        self._free_s[queue] = now_s
        self._charged[way] += nbytes
        self._recent.append(Charged(way.label, source, target, nbytes, begin_s, now_s))
        self._arrived(peer, number, submission)

    def _meet(self, peer: int, submission: Submission) -> None:
        """Let a worker wait for the others; all go on when the last has come."""
        self._met.append((peer, submission))
        if len(self._met) == len(self._worker_nodes):
            met, self._met = self._met, []
            if submission.way is FabricPort.RUN:
                self._begin_time(Engine(self._site.links))
                self._charged.clear()
                self._recent.clear()
                self._free_s.clear()
                self._engine.set_rates(self._rate_changes)
            for each, submitted in met:
                self._hand_on(each, submitted, self._engine.now_s)

    def _begin_time(self, engine: Engine) -> None:
        """Begin time at 0, with links on which nothing moves."""
        self._engine = engine
        self._joints = JointCalls(engine, self._site, self._worker_nodes, self._joint_over)
        self._joint_bytes: dict[tuple[int, bytes], int] = {}
        """Bytes by worker and number of a call that is not over."""

    def _joint_over(self, peer: int, submission: Submission, due_s: float) -> None:
        """Hand on a call that is over for a worker, for which it has lasted since that worker made it."""
        nbytes = self._joint_bytes.pop((peer, submission.frame[:NUMBER_BYTES]), 0)
        self._recent.append(Charged(submission.way.label, peer, peer, nbytes, submission.begin_s, due_s))
        self._hand_on(peer, submission, due_s)

    def _hand_on(self, peer: int, submission: Submission, due_s: float) -> None:
        delivery = FabricDelivery(due_s, submission.way, peer, submission.frame)
        if self._deliver(submission.endpoint, delivery) and due_s < self._limit_s:
            self._limit_s = due_s
            self._engine.end_before(due_s)

    def _path(self, submission: Submission) -> Path:
        source, target = submission.source, submission.target
        match submission.way:
            case FabricPort.PUSH:
                return self._site.push[source, target]
            case FabricPort.PULL:
                return self._site.pull[target, source]
            case FabricPort.LOAD:
                return self._site.load[source, target]
            case FabricPort.STORE:
                return self._site.store[source, target]
            case FabricPort.DEVICES | FabricPort.MESSAGES | FabricPort.FETCH | FabricPort.WRITE:
                return self._site.between_devices[source, target]
            case FabricPort.WORKERS:
                return self._site.between_workers[source, target]
        raise AssertionError(f"{submission} takes no way")
