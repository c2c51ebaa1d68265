"""Descriptors of memory that a launcher holds for ranks, asked for over a Unix socket; see coarse.launch.handing.

A request is one packet: "slots 3", "make NAME", "find NAME", or "move NAME" and the other name behind a line's end. The
answer is "." with the descriptors, or "-" where there is none.
"""

import os
import socket

from coarse.errors import StorageError
from coarse.transport.node_rendezvous import user_of

LONGEST_REQUEST_BYTES = 4096
MOST_S = 10.0
"""Seconds that one answer may take on a busy machine."""
FOUND, NONE = b".", b"-"


def ask_for_slots(address: str, worker: int, count: int) -> list[int]:
    """Return descriptors of a worker's state memory, which are the caller's to close.

    Raises:
        StorageError: nobody of this user answers there, or not with so many.
    """
    descriptors = _ask(address, f"slots {worker}", count)
    if len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise StorageError(
            f"the launcher handed over {len(descriptors)} descriptors of worker {worker}'s state memory, {count} were "
            "expected; start the job again"
        )
    return descriptors


def ask_for_file(address: str, name: str, *, makes: bool) -> int | None:
    """Return the descriptor of a file that the launcher keeps in memory, which is the caller's to close.

    None if there is no such file and it is not to be made. StorageError if no process of this user answers there.
    """
    return next(iter(_ask(address, f"{'make' if makes else 'find'} {name}", 1)), None)


def ask_to_move(address: str, name: str, other: str) -> None:
    """Have the launcher's file have another name, in place of one that has it."""
    _ask(address, f"move {name}\n{other}", 1)


def _ask(address: str, request: str, most: int) -> list[int]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(MOST_S)
            channel.connect(address.replace("@", "\0", 1))
            if user_of(channel) != os.geteuid():
                raise PermissionError("another user listens there")
            channel.send(request.encode())
            answer, descriptors, _, _ = socket.recv_fds(channel, 1, most)
            if answer not in (FOUND, NONE):
                raise ConnectionError("it ended")
    except OSError as error:
        raise StorageError(
            f"the launcher was asked for {request!r}, memory that it holds, at {address}, and did not answer "
            f"({error}); start the job again"
        ) from None
    return descriptors
