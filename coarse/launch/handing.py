"""Server of descriptors of memory that this launcher holds for ranks: states, and files by name."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from coarse.launch.in_thread import InThread
from coarse.launch.state_memory import HeldMemory
from coarse.transport.handed import FOUND, LONGEST_REQUEST_BYTES, MOST_S, NONE
from coarse.transport.node_rendezvous import user_of

_LOOK_S: Final = 0.2


class DescriptorServer(InThread):
    """Server that answers processes of this user at a Unix socket, in a thread."""

    def __init__(self, address: str, memory: HeldMemory) -> None:
        """Listen at an address: a path, or "@" and a name that is none."""
        self._memory = memory
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address.replace("@", "\0", 1))
        self._listener.listen()
        self._listener.settimeout(_LOOK_S)
        super().__init__("coarse-states")

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._listener.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                channel, _ = self._listener.accept()
                with channel, suppress(OSError, ValueError, LookupError):  # gone, or nobody that this project started
                    channel.settimeout(MOST_S)
                    self._answer(channel)

    def _answer(self, channel: socket.socket) -> None:
        if user_of(channel) != os.geteuid():
            return
        verb, _, name = channel.recv(LONGEST_REQUEST_BYTES).decode().partition(" ")
        found = self._descriptors(verb, name)
        if found:
            socket.send_fds(channel, [FOUND], found)
        else:
            channel.send(NONE)

    def _descriptors(self, verb: str, name: str) -> list[int]:
        files = self._memory.files
        match verb:
            case "slots":
                return self._memory.slots_of_worker(int(name))
            case "make":
                return [files.make(name)]
            case "find":
                return files.find(name)
            case "move":
                files.move(*name.split("\n"))
                return []
            case _:
                raise ValueError(verb)
