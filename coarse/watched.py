"""Runs one rank's command and tells `coarse run` how it ended: `python -I -S watched.py COMMAND ...`.

Under ULFM mpirun goes on when a rank ends, and keeps its status to itself. This process has the
rank as its child, so that it learns the status even of a rank that never imported coarse. It needs
nothing but the standard library; started by path, with -I and -S, it takes less than 50 ms and 5 MiB of its own.

It speaks to the launcher in lines over a Unix socket: "3 runs", "3 ended -9"; the rank itself says
"3 waits", "3 joined" and, of the bytes that it moved, "3 carried SENT RECEIVED" or "3 reduced BYTES" (coarse.arrival).
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_FOR_THE_RANK = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
"""mpirun signals a rank's whole process group; this process outlives the rank."""


def main(command: list[str]) -> None:
    """Become the command, or with a launcher have it as a child and end as it ended."""
    launcher, rank = os.environ.get("COARSE_LAUNCHER"), os.environ.get("PMIX_RANK")
    if launcher is None or rank is None:
        os.execvp(command[0], command)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        try:
            channel.connect(launcher.replace("@", "\0", 1))
        except OSError:  # the launcher is gone, or on another host
            os.execvp(command[0], command)
        channel.sendall(f"{rank} runs\n".encode())
        status = _run(command)
        with contextlib.suppress(OSError):  # the launcher is gone and needs no word
            channel.sendall(f"{rank} ended {status}\n".encode())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _run(command: list[str]) -> int:
    """The exit status of the command, run as a child that ends with this process; -n for signal n."""
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    for number in _FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(sys.argv[1:])
