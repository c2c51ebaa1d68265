# Pure: no MPI, threads, clock or environment.
"""Virtual time: actions that are due, and transfers over links, in the order of their times."""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.hardware.ports import Ports

Action = Callable[[], None]


class Engine:
    """Event loop of one job; deterministic, since equal times keep the order in which they were asked for.

    `ports` are given if they do more than move bytes, such as keep a record.
    """

    def __init__(self, links: Sequence[Link], ports: Ports | None = None) -> None:
        self._ports = Ports(links) if ports is None else ports
        self._has_links = bool(links) or ports is not None
        """True if links may change their rates, so that something happens on them where nothing moves."""
        self._due: list[tuple[float, int, Action]] = []
        self._moving: dict[int, Action] = {}
        self._num_asked = 0
        self._free_s: dict[Hashable, float] = {}
        """Second at which each processor has done all that it was given."""
        self.now_s = 0.0
        self.num_events = 0
        self._before_s = self._last_s = math.inf
        """Time before which `run` ends, and the last one before that."""

    def end_before(self, before_s: float) -> None:
        """Have `run` end, or go on, where the next event is at this time or later."""
        self._before_s = before_s
        self._last_s = before_s if before_s == math.inf else math.nextafter(before_s, -math.inf)

    def at(self, at_s: float, action: Action) -> None:
        """Do something at a time that is not past."""
        self._num_asked += 1
        heapq.heappush(self._due, (at_s, self._num_asked, action))

    def work(self, processor: Hashable, seconds: float, action: Action) -> None:
        """Keep a processor busy after all that it was given before, and do something afterwards."""
        begin_s = self._free_s.get(processor, 0.0)
        if begin_s < self.now_s:
            begin_s = self.now_s
        done_s = self._free_s[processor] = begin_s + seconds
        self._num_asked += 1
        heapq.heappush(self._due, (done_s, self._num_asked, action))

    def free_s(self, processor: Hashable) -> float:
        """Return the second at which a processor has done, or will have done, all that it was given so far."""
        return self._free_s.get(processor, 0.0)

    def move(
        self,
        port: Hashable,
        path: Sequence[int],
        nbytes: int,
        action: Action,
        *,
        priority: int = 0,
    ) -> None:
        """Send `nbytes` from a port over links, and do something once they have arrived."""
        self._num_asked += 1
        self._moving[self._num_asked] = action
        self._ports.submit(self._num_asked, port, path, nbytes, self.now_s, priority=priority)

    def move_in_turns(
        self,
        port: Hashable,
        path: Sequence[int],
        nbytes: int,
        num_turns: int,
        action: Action,
        *,
        priority: int = 0,
        wait_s: float | None = None,
    ) -> None:
        """Send so many transfers of `nbytes`, each after the one before has arrived; then do something once.

        The time between two of them, their start-up or `wait_s`, passes first for all of them, while others use the
        port.
        """
        if wait_s is None:
            wait_s = self._ports.fabric.latency_s(tuple(path))
        move = partial(self._move_pieces, port, path, nbytes, num_turns, action, priority)
        self.at(self.now_s + (num_turns - 1) * wait_s, move)

    def _move_pieces(
        self, port: Hashable, path: Sequence[int], nbytes: int, num_turns: int, action: Action, priority: int
    ) -> None:
        self._num_asked += 1
        self._moving[self._num_asked] = action
        total = nbytes * num_turns
        self._ports.submit(self._num_asked, port, path, total, self.now_s, priority=priority, piece_bytes=nbytes)

    def set_rate(self, link: int, bytes_per_s: float, at_s: float) -> None:
        """Give a link another rate from a time on; see Fabric.set_rate."""
        self._ports.fabric.set_rate(link, bytes_per_s, at_s)

    def set_rates(self, changes: Iterable[RateChange]) -> None:
        """Have links change their rates at the times that are stated."""
        for change in changes:
            self.set_rate(change.link, change.bytes_per_s, change.at_s)

    def run(self) -> None:
        """Run until nothing is due and nothing moves, or until all that is left comes later; see `end_before`."""
        ports, due, moving = self._ports, self._due, self._moving
        while True:
            is_due = due and due[0][0] < self._before_s
            ended = ports.next_ended(due[0][0] if is_due else self._last_s) if moving or self._has_links else ()
            if ended:
                for self.now_s, transfer in ended:
                    self.num_events += 1
                    moving.pop(transfer)()
            elif is_due:
                self.now_s, _, action = heapq.heappop(due)
                self.num_events += 1
                action()
            else:
                return

    @property
    def is_idle(self) -> bool:
        """True if nothing is due and nothing moves."""
        return not self._due and not self._moving

    def bytes_moved(self, link: int) -> int | float:
        """Return the bytes that a link has carried so far."""
        return self._ports.fabric.bytes_moved(link)
