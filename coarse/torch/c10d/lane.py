"""Lane of one process group in the progress thread: collectives in order, messages beside them."""

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count

from coarse.client.link import Due
from coarse.collectives.opening import communicators
from coarse.collectives.progress import Conditions, Pending
from coarse.errors import NotInitializedError
from coarse.parallel.groups import shared_by_groups
from coarse.protocol.joint import ANYBODY, CollectiveKind, Joint, Meeting
from coarse.session import current
from coarse.torch.c10d.steps import GroupSteps
from coarse.torch.c10d.watched import watched
from coarse.torch.steps import tell_of_steps

_NUM_TAGS = 0x7FFF
_MODE = "torch.distributed"


class GroupLane:
    """Group whose members have met.

    Collectives run in the order in which they were submitted, as they must on all ranks. A message is posted at once
    and waits for its other end alone: a receive whose sender first takes part in a collective, or the other way round,
    makes no circle.
    """

    def __init__(self, workers: tuple[int, ...], name: str, num_facts: int = 0) -> None:
        """Open a group of these workers, which all of them do together.

        `workers` are `coarse.rank()`s in the group's order. GroupSteps describes `num_facts`.
        """
        runtime = current()
        groups = shared_by_groups(runtime)
        self._link = runtime.require_client().link
        self._link.note_mode(_MODE)
        tell_of_steps(self._link)
        self._progress = groups.progress
        self._meeting = groups.meeting(workers)
        self._lane = ("c10d", groups.next_lane())
        self._messages = count()
        self._is_closed = False
        self._workers = workers
        opened: list[GroupSteps] = []

        def open_group() -> None:
            comms = communicators(groups.worker_comm, workers, zlib.crc32(name.encode()) % _NUM_TAGS)
            by_ring = runtime.config.worker_collective == "ring"
            opened.append(GroupSteps(*comms, workers, f"process group {name!r}", num_facts, by_ring=by_ring))

        self._progress.submit(self._lane, open_group, f"the opening of process group {name!r}", workers).wait()
        self.steps = opened[0]
        """Collectives and messages of the group."""

    def submit(
        self, what: str, steps: Conditions, joints: Sequence[Joint], timeout: timedelta,
        delivery: Callable[[], Conditions] | None = None,
    ) -> Pending:  # fmt: skip
        """Submit the steps of a collective after all earlier ones, and then those of `delivery`.

        `joints` are the bytes that it moves.
        """
        self._require_open(what)
        due = self._link.join(self._meeting, joints, what)
        return self._submit(self._lane, what, steps, timeout, delivery, self._workers, due)

    def post(
        self, what: str, steps: Conditions, message: tuple[Meeting, Joint] | None, timeout: timedelta,
        delivery: Callable[[], Conditions] | None = None,
    ) -> Pending:  # fmt: skip
        """Submit the steps of a message, beside all else; `message` has its two ends (None: from any rank).

        Raises:
            UnsupportedError: a message from any rank in an emulated job, which has to know the sender before.
        """
        self._require_open(what)
        meeting, joint = message or (ANYBODY, Joint(CollectiveKind.RECEIVE))
        due = self._link.join(meeting, (joint,), what)
        lane = (*self._lane, next(self._messages))
        pending = self._submit(lane, what, steps, timeout, delivery, (), due)
        pending.when_over(lambda _: self._progress.forget(lane))
        return pending

    def message(self, kind: CollectiveKind, source: int, target: int, nbytes: int, tag: int) -> tuple[Meeting, Joint]:
        """Return a message between two ranks of the group; `kind` is SEND or RECEIVE."""
        return Meeting((self._workers[source], self._workers[target]), tag), Joint(kind, nbytes)

    def close(self) -> None:
        """Close the lane: no call will be submitted any more, and calls under way are given up."""
        if self._is_closed:
            return
        self._is_closed = True
        self._progress.forget(self._lane)

    def _require_open(self, what: str) -> None:
        if self._is_closed:
            raise NotInitializedError(f"{what} was called on a process group that has been destroyed")

    def _submit(
        self,
        lane: object,
        what: str,
        steps: Conditions,
        timeout: timedelta,
        delivery: Callable[[], Conditions] | None,
        members: tuple[int, ...],
        due: Due | None,
    ) -> Pending:

        def job() -> Conditions:
            reduced_before = self.steps.reduced_bytes
            yield from watched(steps, self._link, timeout.total_seconds(), what, members)
            self._link.reduced_bytes += self.steps.reduced_bytes - reduced_before
            if delivery is not None:
                yield from delivery()

        return self._progress.submit(lane, job, what, members, due)
