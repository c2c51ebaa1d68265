"""Descriptors that a launcher hands to ranks over a Unix socket; see coarse.launch.handing."""

import os
import socket

from coarse.errors import StorageError
from coarse.transport.arrival import user_of

LONGEST_REQUEST_BYTES = 16
MOST_S = 10.0
"""How long one answer may take on a busy machine."""


def ask_for_descriptors(path: str, worker: int, count: int) -> list[int]:
    """Return descriptors of a worker's state memory, which are the caller's to close.

    Raises:
        StorageError: nobody of this user answers there, or not with so many.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(MOST_S)
            channel.connect(path)
            if user_of(channel) != os.geteuid():
                raise PermissionError("another user listens there")
            channel.send(str(worker).encode())
            _, descriptors, _, _ = socket.recv_fds(channel, 1, count)
    except OSError as error:
        raise StorageError(
            f"the launcher was to hand over the state memory of worker {worker} at {path}, and did not ({error}); "
            "start the job again"
        ) from None
    if len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise StorageError(
            f"the launcher handed over {len(descriptors)} descriptors of worker {worker}'s state memory, {count} were "
            "expected; start the job again"
        )
    return descriptors
