"""What stands in for ssh between the nodes of a cluster in a box: a node cannot enter another, the machine can.

A node runs `python doorman.py SOCKET HOST COMMAND...` and ends as the command does, which `Doorman` runs on HOST.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from typing import IO, Self

from coarse.launch.cluster.box import ClusterBox
from coarse.launch.cluster.plan import AGENT, SHARED_FOLDER

SOCKET = f"{SHARED_FOLDER}/doorman"


class Doorman:
    """Serves the nodes of a cluster for as long as the `with` lasts; what it started ends with its asker."""

    def __init__(self, box: ClusterBox) -> None:
        self._box = box
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(box.outside(SOCKET)))
        self._listener.listen()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(asker,), daemon=True).start()

    def _answer(self, asker: socket.socket) -> None:
        with asker, asker.makefile("rb") as lines:
            host, *command = json.loads(lines.readline())
            running = subprocess.Popen(self._box.inside([AGENT, host, *command]), start_new_session=True)
            threading.Thread(target=_end_with, args=(lines, running), daemon=True).start()
            status = running.wait()
            with contextlib.suppress(OSError):  # who asked is gone
                asker.sendall(f"{status}\n".encode())
                asker.shutdown(socket.SHUT_RDWR)


def _end_with(lines: IO[bytes], running: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError, ValueError):
        lines.readline()  # nothing comes: the asker is gone, or has its answer
    running.kill()


def main(address: str, *words: str) -> int:
    """The status of a command that runs on another node."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(address)
        channel.sendall(json.dumps(words).encode() + b"\n")
        return int(channel.makefile().readline() or "1")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
