# Pure: no MPI, threads, clock or environment.
"""Joint calls of workers on a modelled machine: collectives of groups as simulated, and messages.

[Note: joint calls] Each member submits a call when it makes it. A collective begins when the last member's has come,
and plays the phases that the simulator has for it on streams of its group, in the order of the group's calls. An
all-reduce is a ring in pieces (COARSE III-F), in which each member does its part as soon as it can. A message is under
way from when it is sent, and a receive ends when both it and the message are there.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from coarse.emulation.envelope import NUMBER_BYTES, Submission
from coarse.protocol.joint import CollectiveKind, Joint, Meeting, unpack_call
from coarse.simulation.engine import Action, Engine
from coarse.simulation.sharded.chains import (
    Chain,
    Stream,
    gather_from_all,
    gather_from_host,
    gather_within,
    reduce_scatter,
    store_on_host,
)
from coarse.simulation.sharded.queues import PhaseQueue, run_chain
from coarse.simulation.sharded.routes import Phase, SiteRoutes
from coarse.simulation.sites import Site
from coarse.simulation.worker_ring import AllReduces

_HandOn = Callable[[int, Submission, float], None]
_FLAG_BYTES = 8
"""Bytes of each member in a barrier, which is a gather of so many."""


class Call(NamedTuple):
    """Call of one member."""

    submission: Submission
    joint: Joint


class JointCalls:
    """Joint calls of all groups of workers."""

    def __init__(self, engine: Engine, site: Site, worker_nodes: Sequence[int], hand_on: _HandOn) -> None:
        """Begin without calls.

        `hand_on` gets a member, its submission, and the second at which that is over for it.
        """
        self._engine = engine
        self._site = site
        self._worker_nodes = tuple(worker_nodes)
        self._hand_on = hand_on
        self._groups: dict[Meeting, _Group] = {}
        self._sent: defaultdict[Meeting, deque[float]] = defaultdict(deque)
        """Times at which messages have come that were not received yet, by their ends and tag."""
        self._receives: defaultdict[Meeting, deque[tuple[int, Submission]]] = defaultdict(deque)

    def submit(self, worker: int, submission: Submission) -> int:
        """Take a member's call; return the bytes that it contributes."""
        meeting, joint = unpack_call(submission.frame[NUMBER_BYTES:])
        if joint.kind is CollectiveKind.SEND:
            self._send(worker, meeting, submission, joint)
        elif joint.kind is CollectiveKind.READ_WHOLE:
            read = partial(self._over, worker, submission)
            self._engine.move(("host", worker), self._site.from_host[worker], joint.nbytes, read)
        elif joint.kind is CollectiveKind.RECEIVE:
            self._receives[meeting].append((worker, submission))
            self._match(meeting)
        else:
            self._group(meeting).submit(worker, Call(submission, joint))
        return 0 if joint.kind is CollectiveKind.RECEIVE else joint.nbytes

    def _group(self, meeting: Meeting) -> "_Group":
        group = self._groups.get(meeting)
        if group is None:
            routes = SiteRoutes(site=self._site, workers=meeting.members, worker_nodes=self._worker_nodes)
            group = self._groups[meeting] = _Group(self._engine, meeting, routes, self._hand_on)
        return group

    def _send(self, worker: int, meeting: Meeting, submission: Submission, joint: Joint) -> None:
        source, target = meeting.members

        def arrived() -> None:
            self._over(worker, submission)
            self._sent[meeting].append(self._engine.now_s)
            self._match(meeting)

        path = self._site.between_workers[source, target]
        self._engine.move(("workers", source), path, joint.nbytes, arrived)

    def _over(self, worker: int, submission: Submission) -> None:
        self._hand_on(worker, submission, self._engine.now_s)

    def _match(self, meeting: Meeting) -> None:
        sent, receives = self._sent[meeting], self._receives[meeting]
        while sent and receives:
            sent.popleft()
            self._hand_on(*receives.popleft(), self._engine.now_s)


class _Group:
    """Calls of one group: see [Note: joint calls]."""

    def __init__(self, engine: Engine, meeting: Meeting, routes: SiteRoutes, hand_on: _HandOn) -> None:
        self._engine = engine
        self._meeting = meeting
        self._routes = routes
        self._hand_on = hand_on
        self._num_submitted: Counter[int] = Counter()
        self._coming: dict[int, dict[int, Call]] = {}
        """Calls whose members have not all come, by number."""
        self._storing: dict[int, list[Action]] = {}
        """Actions that wait for the node's buffers that are being stored into."""
        self._queues = {stream: PhaseQueue(engine, (meeting, stream)) for stream in Stream}

    def submit(self, worker: int, call: Call) -> None:
        """Take a member's next call."""
        number = self._num_submitted[worker]
        self._num_submitted[worker] += 1
        if call.joint.kind is CollectiveKind.ALL_REDUCE and call.joint.is_ring:
            self._all_reduces.submit(worker, call)
            return
        coming = self._coming.setdefault(number, {})
        coming[worker] = call
        if len(coming) == len(self._meeting.members):
            del self._coming[number]
            self._begin(coming)

    def _begin(self, calls: dict[int, Call]) -> None:
        """Begin a call, to which all have come."""
        joints = [calls[worker].joint for worker in self._meeting.members]
        if joints[0].kind is CollectiveKind.READ_PARTS and joints[0].buffer in self._storing:
            self._storing[joints[0].buffer].append(partial(self._begin, calls))
            return
        ended = partial(self._ended, calls)
        run_chain(self._queues, chain_of(joints, self._routes), "", "", ended)

    def _ended(self, calls: dict[int, Call]) -> None:
        for worker, call in calls.items():
            self._hand_on(worker, call.submission, self._engine.now_s)
        joint = calls[self._meeting.members[0]].joint
        if joint.is_kept:
            stored = store_on_host(self._routes, joint.nbytes * len(calls))
            self._storing.setdefault(joint.buffer, [])
            run_chain(self._queues, stored, "", "", partial(self._stored, joint.buffer))

    def _stored(self, buffer: int) -> None:
        for begin in self._storing.pop(buffer, ()):
            begin()

    @cached_property
    def _all_reduces(self) -> "_RingsInPieces":
        return _RingsInPieces(self._engine, self._routes, self._meeting.members, self._hand_on)


def chain_of(joints: Sequence[Joint], routes: SiteRoutes) -> Chain:
    """Return the phases of a collective of members in the group's order; the first one's kind counts."""
    joint, num_members = joints[0], len(joints)
    nbytes = sum(each.nbytes for each in joints)
    match joint.kind:
        case CollectiveKind.ALL_GATHER | CollectiveKind.SPARSE_ALL_REDUCE:
            return gather_from_all(routes, nbytes, is_ring=joint.is_ring)
        case CollectiveKind.GATHER_ON_NODE:
            return gather_within(routes, joint.nbytes * len(routes.nodes[0]))
        case CollectiveKind.READ_PARTS:
            return gather_from_host(routes, joint.nbytes * len(routes.nodes[0]))
        case CollectiveKind.REDUCE_SCATTER:
            return reduce_scatter(routes, joint.nbytes, is_ring=joint.is_ring)
        case CollectiveKind.ALL_REDUCE:
            scattered = reduce_scatter(routes, joint.nbytes, is_ring=joint.is_ring)
            return (*scattered, *gather_from_all(routes, joint.nbytes, is_ring=joint.is_ring))
        case CollectiveKind.MEET:
            return ()
        case CollectiveKind.BARRIER | CollectiveKind.NODE_BUFFER:
            return ((Stream.BETWEEN, routes.ring(_FLAG_BYTES * num_members)),)
    return ((Stream.BETWEEN, _rooted(joints, routes)),)


def _rooted(joints: Sequence[Joint], routes: SiteRoutes) -> Phase:
    """Return transfers that all begin at once."""
    joint, members = joints[0], routes.members
    if joint.kind is CollectiveKind.ALL_TO_ALL:
        parts = {
            (source, target): nbytes
            for source, own in zip(members, joints, strict=True)
            for target, nbytes in zip(members, own.parts, strict=True)
        }
        return routes.pairs(parts)
    root = members[joint.root]
    others = [member for member in members if member != root]
    in_order = [*members[joint.root :], *members[: joint.root]]
    match joint.kind:
        case CollectiveKind.BROADCAST:
            return routes.line(in_order, joints[joint.root].nbytes)
        case CollectiveKind.REDUCE:
            return routes.line(in_order[::-1], joint.nbytes)
        case CollectiveKind.GATHER:
            return routes.pairs({(each, root): joints[members.index(each)].nbytes for each in others})
        case CollectiveKind.SCATTER:
            return routes.pairs({(root, each): joints[joint.root].nbytes for each in others})
    raise AssertionError(f"emulation has no phases for {joint}")


class _RingsInPieces:
    """All-reduces of a group, each begun by every member by itself; the n-th of one is the n-th of all."""

    def __init__(self, engine: Engine, routes: SiteRoutes, members: Sequence[int], hand_on: _HandOn) -> None:
        self._num_elements: list[int] = []
        self._sizes: list[int] = []
        self._submitted: dict[int, dict[int, Submission]] = {worker: {} for worker in members}
        """Submissions by place, of those that are not over."""
        self._num_begun: Counter[int] = Counter()
        self._hand_on = hand_on
        self._engine = engine
        self._rings = AllReduces(
            engine, routes.site.between_workers, members, self._num_elements, self._sizes, self._ended
        )

    def submit(self, worker: int, call: Call) -> None:
        """Begin a member's next all-reduce."""
        place = self._num_begun[worker]
        self._num_begun[worker] += 1
        self._submitted[worker][place] = call.submission
        if place == len(self._sizes):
            self._sizes.append(call.joint.itemsize)
            self._num_elements.append(call.joint.nbytes // call.joint.itemsize)
        self._rings.begin(worker, place)

    def _ended(self, worker: int, place: int) -> None:
        self._hand_on(worker, self._submitted[worker].pop(place), self._engine.now_s)
