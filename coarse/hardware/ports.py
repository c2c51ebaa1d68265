# Pure: no MPI, threads, clock or environment.
"""Ports in front of the links: each sends one thing after the other, the most urgent first.

A client's push engine and a sync core's SendBuf each send one transfer at a time. Without that, everything that waits
would share a link and everything would end late together. While one streams, the next is set up: its start-up latency
is hidden as far as it waited.
"""

import heapq
from collections.abc import Hashable, Sequence

from coarse.hardware.fabric import Fabric
from coarse.hardware.links import Link

_Waiting = tuple[int, int, int, tuple[int, ...], int, int | None, float]
"""Waiting transfer: -priority, order of submission, transfer, path, bytes, bytes of a piece, begin. The smallest
goes first."""


class Ports:
    """Links of a machine behind ports."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.fabric = Fabric(links)
        self._waiting: dict[Hashable, list[_Waiting]] = {}
        """Queues of the ports with a transfer under way."""
        self._port_of: dict[int, Hashable] = {}
        self._num_submitted = 0

    def submit(
        self,
        transfer: int,
        port: Hashable,
        path: Sequence[int],
        nbytes: int,
        at_s: float,
        *,
        priority: int = 0,
        begun_s: float | None = None,
        piece_bytes: int | None = None,
    ) -> None:
        """Queue a transfer of `nbytes` over links `path`; it starts at `at_s` if its port is free.

        `begun_s` says since when it could have been under way, if it is submitted late; for `piece_bytes` see
        Fabric.start.
        """
        self._port_of[transfer] = port
        waiting = self._waiting.get(port)
        if waiting is None:
            self._waiting[port] = []
            self.fabric.start(transfer, path, nbytes, at_s, begun_s=begun_s, piece_bytes=piece_bytes)
            return
        self._num_submitted += 1
        since_s = at_s if begun_s is None else begun_s
        heapq.heappush(waiting, (-priority, self._num_submitted, transfer, tuple(path), nbytes, piece_bytes, since_s))

    def next_s(self) -> float | None:
        """Return the time of the next event; None if nothing is under way."""
        return self.fabric.next_s()

    def advance(self, to_s: float) -> list[tuple[float, int]]:
        """Return (time, transfer) of all that end until `to_s`, in order; freed ports start waiting transfers."""
        ended: list[tuple[float, int]] = []
        while ended_now := self.next_ended(to_s):
            ended += ended_now
        return ended

    def next_ended(self, until_s: float) -> list[tuple[float, int]]:
        """Return (time, transfer) of all that end at the instant when the next one does, if by `until_s`."""
        fabric = self.fabric
        ended: list[tuple[float, int]] = []
        while ended_now := fabric.next_ended(until_s):
            until_s = fabric.now_s  # what starts now may end now
            for end_s, transfer in ended_now:
                self._free(self._port_of.pop(transfer), until_s, end_s)
            ended += ended_now
        return ended

    def _free(self, port: Hashable, now_s: float, end_s: float) -> None:
        """Start the next of a port whose transfer has ended at `end_s`, noticed at `now_s`."""
        waiting = self._waiting[port]
        if not waiting:
            del self._waiting[port]
            return
        _, _, transfer, path, nbytes, piece_bytes, since_s = heapq.heappop(waiting)
        set_up_s = max(since_s, end_s - self.fabric.latency_s(path))
        self.fabric.start(
            transfer, path, nbytes, max(now_s, since_s), begun_s=set_up_s, piece_bytes=piece_bytes
        )
