"""Hands descriptors of state memory to ranks that cannot open this process's files: those of nodes in a box."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from coarse.transport.arrival import user_of
from coarse.transport.handed import LONGEST_REQUEST_BYTES, MOST_S

_LOOK_S: Final = 0.2


class DescriptorServer:
    """Answers at a Unix socket, in a thread, whoever of this user asks for a worker's descriptors."""

    def __init__(self, path: Path, descriptors_of: Callable[[int], Sequence[int]]) -> None:
        """`descriptors_of` raises IndexError for a worker that there is none of."""
        self._descriptors_of = descriptors_of
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(_LOOK_S)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="coarse-states", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                channel, _ = self._listener.accept()
                with channel, suppress(OSError, ValueError, IndexError):  # gone, or nobody that this project started
                    channel.settimeout(MOST_S)
                    self._answer(channel)

    def _answer(self, channel: socket.socket) -> None:
        if user_of(channel) == os.geteuid():
            worker = int(channel.recv(LONGEST_REQUEST_BYTES))
            socket.send_fds(channel, [b"."], self._descriptors_of(worker))
