"""Watch of a process group's job: its time limit, and the deaths of ranks."""

from collections.abc import Collection

from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.collectives.conditions import Condition
from coarse.collectives.progress import LEFT_S, Conditions
from coarse.errors import StallError

_LOOK_S = 0.05
"""Seconds between a wait's looks for ranks that have died."""
_NAMING_S = 1.0
"""Seconds by which the devices may know of a death later than MPI."""


def watched(steps: Conditions, link: DeviceLink, timeout_s: float, what: str, members: Collection[int]) -> Conditions:
    """Return the same steps, in which every wait looks at the clock, for the dead, and for `members`.

    It looks for members that have shut down. A future may be waited for inside torch, which knows neither this group's
    timeout nor the devices' reports.
    """
    deadline_s = link.clock.now_s() + timeout_s
    limit = f"did not end within the group's timeout of {timeout_s:g} s"
    try:
        for awaited in steps:
            wait = _Watched(awaited, link, deadline_s, what, limit, members)
            yield wait
            if wait.failure is not None:
                raise wait.failure
    except MPI.Exception as failure:
        yield _Naming(failure, link)


class _Watched:
    """Wait for something, until the deadline."""

    def __init__(
        self, awaited: Condition, link: DeviceLink, deadline_s: float, what: str, limit: str, members: Collection[int]
    ) -> None:
        self._awaited = awaited
        self._link = link
        self._deadline_s = deadline_s
        self._whole_s = link.clock.now_s()
        """Time at which the last look found every member here."""
        self._next_look_s = self._whole_s + _LOOK_S
        self._what = what
        self._limit = limit
        self._members = members
        self.failure: MPI.Exception | None = None

    def is_over(self) -> bool:
        """Return whether the wait is over.

        Raises:
            StallError: the time is up.
            DeadRankError: a rank has died.
        """
        try:
            if self._awaited.is_over():
                return True
        except MPI.Exception as failure:
            self.failure = failure
            return True
        now_s = self._link.clock.now_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            _require_alive(self._link)
            self._require_present(now_s)
        if now_s >= self._deadline_s:
            missing = self._awaited.missing()
            whom = f"; ranks {list(missing)} have not come" if missing else ""
            raise StallError(
                f"rank {self._link.protocol.client}: {self._what} {self._limit}{whom}; see what those ranks wait for, "
                "or raise the timeout of init_process_group or new_group",
                missing=missing,
            )
        return False

    def _require_present(self, now_s: float) -> None:
        """Raise DeadRankError for a needed worker that has shut down.

        Its earlier work first has time to come.
        """
        left = self._link.left_of(self._awaited.missing() or self._members)
        if not left:
            self._whole_s = now_s
        elif now_s >= self._whole_s + LEFT_S:
            raise self._link.left_error(left, self._what)

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that the wait lacks."""
        return self._awaited.missing()


class _Naming:
    """Endless wait that raises the death once devices know it, and MPI's error where they know of none."""

    def __init__(self, failure: MPI.Exception, link: DeviceLink) -> None:
        self._failure = failure
        self._link = link
        self._until_s = link.clock.now_s() + _NAMING_S

    def is_over(self) -> bool:
        """Raise an error, or return False."""
        _require_alive(self._link)
        if self._link.clock.now_s() >= self._until_s:
            raise self._failure
        return False

    def missing(self) -> tuple[int, ...]:
        """Return no ranks."""
        return ()


def _require_alive(link: DeviceLink) -> None:
    with link.lock:
        link.look()
    if link.has_failed:
        link.wait_until(lambda: False, 0.0)  # raises DeadRankError, which names the rank
