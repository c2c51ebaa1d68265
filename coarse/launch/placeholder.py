"""Program that holds a worker's place in mpirun for a process of torchrun: `placeholder.py JOB FIRST`.

See coarse.transport.torchrun_start. It gives its environment to the first process of this user that asks at its socket,
and ends when that process does: with 0 if it has said that it ends well. It waits no longer once the job's first
worker, FIRST, has ended; on that worker's host it sees that itself, on others mpirun ends it.
"""

import json
import os
import select
import socket
import sys

from coarse.errors import CoarseError
from coarse.protocol.clock import WallClock
from coarse.transport.node_rendezvous import process_and_user_of
from coarse.transport.torchrun_start import placeholder_address

_HANDED_ON = ("PMIX", "OMPI_", "OPAL_", "PRTE_", "COARSE_")
_BIND_AGAIN_S = 0.1


def main(job: str, first: str, clock: WallClock) -> int:
    """Return the exit status of a placeholder; `first` is PID@HOST."""
    pid, _, host = first.partition("@")
    try:
        owners = [os.pidfd_open(int(pid))] if host == socket.gethostname() else []
    except ProcessLookupError:
        return 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, placeholder_address(job, int(os.environ["LOCAL_RANK"])), owners, clock)
        listener.listen()
        found = _worker(listener, owners)
    if found is None:
        return 1
    channel, worker_pid = found
    with channel:
        worker = os.pidfd_open(worker_pid)
        environ = {name: value for name, value in os.environ.items() if name.startswith(_HANDED_ON)}
        channel.sendall(json.dumps(environ).encode() + b"\n")
        select.select([worker], [], [])
        os.close(worker)
        channel.setblocking(False)
        try:
            word = channel.recv(64)
        except (BlockingIOError, ConnectionError):
            word = b""
    return 0 if word else 1


def _bind(listener: socket.socket, address: str, owners: list[int], clock: WallClock) -> None:
    """Bind the name, which a placeholder of a job that is just ending may have yet."""
    while True:
        try:
            return listener.bind(address)
        except OSError as error:
            if select.select(owners, [], [], 0)[0]:
                raise CoarseError(
                    f"another process of {socket.gethostname()} has the name {address[1:]!r} ({error.strerror}); see "
                    "in /proc/net/unix which"
                ) from None
        clock.sleep_s(_BIND_AGAIN_S)


def _worker(listener: socket.socket, owners: list[int]) -> tuple[socket.socket, int] | None:
    """Return the connection to the worker, a process of this user, and its process id.

    It is None if an owner has ended.
    """
    while True:
        ready, _, _ = select.select([listener.fileno(), *owners], [], [])
        if listener.fileno() not in ready:
            return None
        channel, _ = listener.accept()
        pid, user = process_and_user_of(channel)
        if user == os.geteuid():
            return channel, pid
        channel.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], WallClock()))
