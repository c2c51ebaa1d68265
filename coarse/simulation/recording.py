# Pure: no MPI, threads, clock or environment.
"""Record of a simulated job's links and adders over time, for timelines, kept on request only."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from coarse.hardware.links import Link
from coarse.hardware.ports import Ports
from coarse.simulation.engine import Action, Engine

Port = tuple[str, int]
"""Task of a sender and its number. They are ("push", worker), ("pull", worker), ("workers", worker), ("ring",
device), ("fetch", device)."""


class Transfer(NamedTuple):
    """Bytes that a port sent; a port sends one thing at a time."""

    port: Port
    position: int
    """Gradient, counted in the order of backward, where the port knows it (not the workers' ring)."""
    path: tuple[int, ...]
    """Link ids, one of them twice where it is crossed twice."""
    nbytes: int
    begin_s: float
    end_s: float


class Work(NamedTuple):
    """Time in which a processor is kept busy."""

    processor: Port
    begin_s: float
    end_s: float


class Recording:
    """Record of one job: requests to ports and adders, and the ends of transfers.

    It is kept as flat lists, field after field: objects that stay would make the garbage collector work.
    """

    def __init__(self) -> None:
        self.asked: list[Any] = []
        """Transfer, port, position, path, bytes, and the time when it was handed to its port."""
        self.ended: list[Any] = []
        """Time of its end, and the transfer; in the order of time."""
        self.worked: list[Any] = []
        """Processor, seconds, and the time of their end; in the order in which they were asked for."""

    def transfers(self) -> Iterator[Transfer]:
        """Yield transfers in the order of their ends, each from when its port was free for it.

        Its start-up is part of it.
        """
        asked = {number: rest for number, *rest in _groups(self.asked, 6)}
        free_s: dict[Port, float] = {}
        for end_s, number in _groups(self.ended, 2):
            port, position, path, nbytes, asked_s = asked[number]
            begin_s = min(end_s, max(asked_s, free_s.get(port, asked_s)))
            free_s[port] = end_s
            yield Transfer(port, position, tuple(path), nbytes, begin_s, end_s)

    def works(self) -> Iterator[Work]:
        """Return works in the order in which they were asked for."""
        return (Work(processor, end_s - seconds, end_s) for processor, seconds, end_s in _groups(self.worked, 3))


def _groups(flat: list[Any], size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * size, strict=True)


class _RecordingPorts(Ports):
    """Ports that keep their requests, and the end of each."""

    def __init__(self, links: Sequence[Link], recording: Recording) -> None:
        super().__init__(links)
        self._asked, self._ended = recording.asked, recording.ended

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
        """Submit a transfer (Ports.submit), and record it."""
        self._asked += (transfer, port, priority, path, nbytes, at_s)
        super().submit(
            transfer, port, path, nbytes, at_s, priority=priority, begun_s=begun_s, piece_bytes=piece_bytes
        )

    def next_ended(self, until_s: float) -> list[tuple[float, int]]:
        """Return the transfers that ended (Ports.next_ended), and record them."""
        ended = super().next_ended(until_s)
        for pair in ended:
            self._ended += pair
        return ended


class RecordingEngine(Engine):
    """Engine that keeps all that it moves and works on."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.recording = Recording()
        super().__init__(links, _RecordingPorts(links, self.recording))

    def work(self, processor: Hashable, seconds: float, action: Action) -> None:
        """Give a processor work (Engine.work), and record it."""
        super().work(processor, seconds, action)
        self.recording.worked += (processor, seconds, self.free_s(processor))
