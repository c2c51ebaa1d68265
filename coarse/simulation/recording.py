"""What a simulated job's links and adders did and when, for timelines: recorded only where that is asked for."""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, cast

from coarse.emulation.links import Link
from coarse.emulation.ports import Ports
from coarse.simulation.engine import Action, Engine

Port = tuple[str, int]
"""What a sender does, and its number: ("push", worker), ("pull", worker), ("workers", worker), ("ring", device),
("fetch", device)."""


class Transfer(NamedTuple):
    """Bytes that a port sent; a port sends one thing at a time."""

    port: Port
    position: int
    """Which gradient, counted in the order of backward, where the port knows (not the workers' ring)."""
    path: tuple[int, ...]
    """Link ids, one of them twice where it is crossed twice."""
    nbytes: int
    begin_s: float
    end_s: float


class Work(NamedTuple):
    """A processor kept busy."""

    processor: Port
    begin_s: float
    end_s: float


class Recording:
    """Of one job: what was asked of ports and adders, and when transfers ended. Kept raw: recording is cheap."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[Port, int, tuple[int, ...], int, float]] = {}
        """Transfer -> port, position, path, bytes, and when it was handed to its port."""
        self.ended: list[tuple[float, int]] = []
        """(when, transfer) in the order of time."""
        self.works: list[Work] = []
        """In the order in which they were asked for."""

    def transfers(self) -> Iterator[Transfer]:
        """In the order of their ends, each from when its port was free for it; its start-up is part of it."""
        free_s: dict[Port, float] = {}
        for end_s, number in self.ended:
            port, position, path, nbytes, asked_s = self.asked[number]
            begin_s = min(end_s, max(asked_s, free_s.get(port, asked_s)))
            free_s[port] = end_s
            yield Transfer(port, position, path, nbytes, begin_s, end_s)


class _RecordingPorts(Ports):
    """Ports that keep what they are given and when it ended."""

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
        """See Ports."""
        self._asked[transfer] = port, priority, path, nbytes, at_s  # type: ignore[assignment]
        super().submit(
            transfer, port, path, nbytes, at_s, priority=priority, begun_s=begun_s, piece_bytes=piece_bytes
        )

    def advance(self, to_s: float) -> list[tuple[float, int]]:
        """See Ports."""
        ended = super().advance(to_s)
        self._ended += ended
        return ended


class RecordingEngine(Engine):
    """An engine that keeps what it moves and what it works on."""

    def __init__(self, links: Sequence[Link]) -> None:
        super().__init__(links)
        self.recording = Recording()
        self._ports = _RecordingPorts(links, self.recording)

    def work(self, processor: Hashable, seconds: float, action: Action) -> None:
        """See Engine."""
        super().work(processor, seconds, action)
        end_s = self._free_s[processor]
        self.recording.works.append(Work(cast(Port, processor), end_s - seconds, end_s))
