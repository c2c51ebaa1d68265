"""Watch of a job's ranks: it hears from all that start, and says when the job must be ended."""

import os
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from coarse.launch.rank_exits import Departures, Verdict
from coarse.protocol.clock import WallClock
from coarse.transport.node_rendezvous import user_of

_LINE_BYTES = 64
_INTERRUPT = b"interrupt\n"
_MOST_WORDS = 4
_LONGEST_LINE_BYTES = 256


class Doorstep(NamedTuple):
    """Address of a Unix socket, "@" standing for the zero byte before a name that is no path."""

    bound: str
    """Address as the launcher binds it."""
    told: str
    """Address as ranks reach it, and COARSE_LAUNCHER tells it. It is a path if they have another network namespace."""


class Watch:
    """Watch that listens to a job's ranks in a thread of its own.

    See coarse.launch.exit_reporter for the lines that they say.
    """

    def __init__(self, departures: Departures, doorstep: Doorstep | None = None) -> None:
        self.departures = departures
        self._clock = WallClock()
        name = f"@coarse-launcher-{secrets.token_hex(8)}"
        doorstep = doorstep or Doorstep(name, name)
        self.name = doorstep.told
        """Address that COARSE_LAUNCHER tells the ranks."""
        self.carried: dict[int, tuple[int, int]] = {}
        """Bytes that each rank sent to and received from other nodes, as ranks say when they leave."""
        self.reduced: dict[int, int] = {}
        """Bytes that each rank and the other workers summed by MPI, as workers say when they leave."""
        self.first_bad_s: float | None = None
        """Time when a rank was first known not to have ended well, by the system's monotonic clock."""
        self.verdict: Verdict | None = None
        """Reason why the job was ended, if it was."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(doorstep.bound.replace("@", "\0", 1))
        self._listener.listen()
        self._stopped = threading.Event()
        self._stop_bell, self._heard_bell = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._watching: dict[int, socket.socket] = {}
        """Connection of the process that watches each rank, while that runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._stop_bell.close()
        if self._thread is not None:
            self._thread.join()
        self._heard_bell.close()
        self._listener.close()

    def start(self, end: Callable[[Verdict], None]) -> None:
        """Listen from now on; `end` is called once when the job can no longer start."""
        self._thread = threading.Thread(target=self._listen, args=(end,), name="coarse-watch", daemon=True)
        self._thread.start()

    def interrupt(self) -> bool:
        """Tell ranks' watching processes of a Ctrl-C, for the workers' scripts; return whether any is there."""
        told = 0
        for channel in list(self._watching.values()):
            with suppress(OSError):  # it ends just now
                told += channel.send(_INTERRUPT)
        return told > 0

    def outlasts(self, timeout_s: float) -> bool:
        """Return whether the watch goes on for so long yet."""
        return not self._stopped.wait(timeout_s)

    def _listen(self, end: Callable[[Verdict], None]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._heard_bell, selectors.EVENT_READ)
            self._until_stopped(selector, end)
            for key in selector.get_map().values():
                if key.data is not None:
                    key.fileobj.close()  # type: ignore[union-attr]

    def _until_stopped(self, selector: selectors.BaseSelector, end: Callable[[Verdict], None]) -> None:
        standing: Verdict | None = None
        since_s = 0.0
        while not self._stopped.is_set():
            pending = None if standing is None else max(0.0, since_s + standing.grace_s - self._clock.now_s())
            self._take(selector, pending)
            verdict = self.departures.verdict()
            if self.first_bad_s is None and self.departures.failure() is not None:
                self.first_bad_s = self._clock.now_s()
            if verdict is None or standing is None or verdict.grace_s != standing.grace_s:
                since_s = self._clock.now_s()
            standing = verdict
            if verdict is not None and self._clock.now_s() >= since_s + verdict.grace_s:
                self.verdict = verdict
                end(verdict)
                return
        selector.unregister(self._heard_bell)
        while self._take(selector, 0.0):
            pass  # what ranks said before the job ended

    def _take(self, selector: selectors.BaseSelector, timeout_s: float | None) -> bool:
        """Return whether anything came within the time; None waits until it does."""
        ready = selector.select(timeout_s)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept(selector)
            elif key.data is not None and not self._hear(key.fileobj, key.data):  # type: ignore[arg-type]
                selector.unregister(key.fileobj)
        return bool(ready)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Take a connection of this user's; any process of this machine may try."""
        channel, _ = self._listener.accept()
        if user_of(channel) == os.geteuid():
            selector.register(channel, selectors.EVENT_READ, _Speaker(self.departures.num_ranks))
        else:
            channel.close()

    def _hear(self, channel: socket.socket, speaker: "_Speaker") -> bool:
        """Take the bytes that have come; return False, with the channel closed, once there will be no more."""
        try:
            data = channel.recv(_LINE_BYTES)
            for line in speaker.lines(data):
                speaker.tell(line, self)
            if speaker.watched_rank is not None:
                self._watching[speaker.watched_rank] = channel
        except (ConnectionError, ValueError):  # gone, or nobody that this project started
            data = b""
        if not data:
            if speaker.watched_rank is not None:
                self._watching.pop(speaker.watched_rank, None)
            channel.close()
            speaker.hang_up(self.departures)
        return bool(data)


class _Speaker:
    """Connection of a rank, or of the process that watches the rank."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._rest = b""
        self._rank = -1
        self._verb = ""

    @property
    def watched_rank(self) -> int | None:
        """Rank that this process watches; None if it is a rank itself."""
        return self._rank if self._verb == "runs" else None

    def lines(self, data: bytes) -> list[str]:
        """Return the whole lines that `data` completes; ValueError if they are no text or have no end."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE_BYTES:
            raise ValueError("a line without an end")
        return [line.decode() for line in whole]

    def tell(self, line: str, watch: Watch) -> None:
        """Note the report of a line; ValueError if it is none that ranks make."""
        first, verb, *others = line.split(maxsplit=_MOST_WORDS)
        rank, numbers = int(first), tuple(int(number) for number in others)
        if not 0 <= rank < self._num_ranks or self._rank not in (-1, rank):
            raise ValueError(f"no rank of this connection: {rank}")
        self._rank, self._verb = rank, verb
        departures = watch.departures
        match (verb, numbers):
            case ("runs", ()):
                departures.on_runs(rank)
            case ("waits", ()):
                departures.on_waits(rank)
            case ("starts", ()):
                departures.on_starts(rank)
            case ("left", ()):
                departures.on_left(rank)
            case ("met", ()):
                departures.on_met(rank)
            case ("joined", ()):
                departures.on_joined(rank)
            case ("fails", (status, error)):
                departures.on_fails(rank, status, error)
            case ("follows", ()):
                departures.on_follows(rank)
            case ("ended", (status,)):
                departures.on_ended(rank, status)
            case ("carried", (sent, received)):
                watch.carried[rank] = (sent, received)
            case ("reduced", (nbytes,)):
                watch.reduced[rank] = nbytes
            case _:
                raise ValueError(f"not what a rank says: {verb}")

    def hang_up(self, departures: Departures) -> None:
        """Note that the connection is closed: a watching process that said no status was killed."""
        if self._verb == "runs":
            departures.on_ended(self._rank, None)
        elif self._verb in ("waits", "joined"):
            departures.on_waits_no_longer(self._rank)
        elif self._verb == "starts":
            departures.on_started(self._rank)
