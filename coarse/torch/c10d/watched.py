"""A job of a process group within its time, and among ranks that are alive."""

from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.collectives.awaited import Awaited
from coarse.errors import StallError
from coarse.torch.c10d.steps import Steps

_LOOK_S = 0.05
"""How often a wait looks for ranks that have died."""
_NAMING_S = 1.0
"""How much later than MPI the devices may know who died."""


def watched(steps: Steps, link: DeviceLink, timeout_s: float, what: str) -> Steps:
    """The same steps, in which every wait looks at the clock and for the dead.

    A future may be waited for inside torch, which knows neither this group's timeout nor the devices' word.
    """
    deadline_s = link.clock.now_s() + timeout_s
    text = f"{what} did not end within the group's timeout of {timeout_s:g} s"
    try:
        for awaited in steps:
            wait = _Watched(awaited, link, deadline_s, text)
            yield wait
            if wait.failure is not None:
                raise wait.failure
    except MPI.Exception as failure:
        yield _Naming(failure, link)


class _Watched:
    """Something awaited, until the deadline."""

    def __init__(self, awaited: Awaited, link: DeviceLink, deadline_s: float, text: str) -> None:
        self._awaited = awaited
        self._link = link
        self._deadline_s = deadline_s
        self._next_look_s = link.clock.now_s() + _LOOK_S
        self._text = text
        self.failure: MPI.Exception | None = None

    def is_over(self) -> bool:
        """See Awaited. Raises StallError after the time, and DeadRankError once a rank has died."""
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
        if now_s >= self._deadline_s:
            missing = self._awaited.missing()
            whom = f"; ranks {list(missing)} have not come" if missing else ""
            raise StallError(
                f"rank {self._link.machine.client}: {self._text}{whom}; see what those ranks wait for, or raise the "
                "timeout of init_process_group or new_group",
                missing=missing,
            )
        return False

    def missing(self) -> tuple[int, ...]:
        """See Awaited."""
        return self._awaited.missing()


class _Naming:
    """Never over: raises who died once the devices know, and MPI's error where they know of nobody."""

    def __init__(self, failure: MPI.Exception, link: DeviceLink) -> None:
        self._failure = failure
        self._link = link
        self._until_s = link.clock.now_s() + _NAMING_S

    def is_over(self) -> bool:
        """See Awaited."""
        _require_alive(self._link)
        if self._link.clock.now_s() >= self._until_s:
            raise self._failure
        return False

    def missing(self) -> tuple[int, ...]:
        """See Awaited."""
        return ()


def _require_alive(link: DeviceLink) -> None:
    with link.lock:
        link.look()
    if link.has_failed:
        link.wait_until(lambda: False, 0.0)  # raises DeadRankError, which names the rank
