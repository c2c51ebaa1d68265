"""The launcher's ear: hears from all ranks of a job that starts, and says when it must be ended."""

import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Self

from coarse.clock import WallClock
from coarse.departures import Departures, Verdict

_GRACE_S = 0.5
"""How long a verdict must stand: ranks that were refused together end one after another."""
_LINE_BYTES = 64


class Watch:
    """Listens to a job's ranks (see coarse.watched for what they say) in a thread of its own."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._clock = WallClock()
        self.name = f"coarse-launcher-{secrets.token_hex(8)}"
        """What COARSE_LAUNCHER tells the ranks."""
        self.verdict: Verdict | None = None
        """Why the job was ended, if it was."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen()
        self._stopped = threading.Event()
        self._stop_bell, self._heard_bell = socket.socketpair()
        self._thread: threading.Thread | None = None

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

    def outlasts(self, timeout_s: float) -> bool:
        """Whether the watch goes on for so long yet."""
        return not self._stopped.wait(timeout_s)

    def _listen(self, end: Callable[[Verdict], None]) -> None:
        since_s: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._heard_bell, selectors.EVENT_READ)
            while not self._stopped.is_set():
                pending = None if since_s is None else max(0.0, since_s + _GRACE_S - self._clock.now_s())
                for key, _ in selector.select(pending):
                    if key.fileobj is self._listener:
                        selector.register(self._listener.accept()[0], selectors.EVENT_READ, _Speaker())
                    elif key.data is not None and not self._hear(key.fileobj, key.data):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
                verdict = self._departures.verdict()
                if verdict is None:
                    since_s = None
                elif since_s is None:
                    since_s = self._clock.now_s()
                elif self._clock.now_s() >= since_s + _GRACE_S:
                    self.verdict = verdict
                    end(verdict)
                    return

    def _hear(self, channel: socket.socket, speaker: "_Speaker") -> bool:
        """Take what has come; False, with the channel closed, once there will be no more."""
        try:
            data = channel.recv(_LINE_BYTES)
        except ConnectionError:
            data = b""
        for line in speaker.lines(data):
            speaker.tell(line, self._departures)
        if not data:
            channel.close()
            speaker.hang_up(self._departures)
        return bool(data)


class _Speaker:
    """One connection: a rank's own, or that of the process that watches the rank."""

    def __init__(self) -> None:
        self._rest = b""
        self._rank = -1
        self._verb = ""

    def lines(self, data: bytes) -> list[str]:
        """The whole lines that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in whole]

    def tell(self, line: str, departures: Departures) -> None:
        """Note what a line says."""
        rank, self._verb, *status = line.split()
        self._rank = int(rank)
        if self._verb == "waits":
            departures.on_waits(self._rank)
        elif self._verb == "joined":
            departures.on_joined(self._rank)
        elif self._verb == "ended":
            departures.on_ended(self._rank, int(status[0]))

    def hang_up(self, departures: Departures) -> None:
        """Note that the connection is closed: a watching process that said no status was killed."""
        if self._verb == "runs":
            departures.on_ended(self._rank, None)
        elif self._verb in ("waits", "joined"):
            departures.on_waits_no_longer(self._rank)
