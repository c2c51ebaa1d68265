"""Program that stands below mpirun for a rank, forked by a process with its libraries (server.py).

Arguments: the sockets of such processes, with commas between them, the rank's script and its arguments. Signals go on
to the rank, and as the rank ends this ends; if the process that forked it has ended, by SIGKILL, as the rank has.
"""

import os
import signal
import socket
import sys
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Ask for the rank, and end as it does."""
    paths = sys.argv[1].split(",")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(paths[int(os.environ["PMIX_RANK"]) % len(paths)])
        argv, environ = sys.argv[2:], (f"{name}={value}" for name, value in os.environ.items())
        wanted = "\0".join((os.getcwd(), str(len(argv)), *argv, *environ))  # none of them can hold a zero byte
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # the rank may run before it is known here
        socket.send_fds(server, [os.fsencode(wanted)], [0, 1, 2])
        pid = int(server.recv(64))
        with suppress(ProcessLookupError):  # it may have ended; then its status comes next
            rank = os.pidfd_open(pid)
            for number in FORWARDED:
                signal.signal(number, lambda came, _: _forward(rank, came))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if not (said := server.recv(64)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            print("the process that forked this rank has ended", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    status = os.waitstatus_to_exitcode(int(said))
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _forward(rank: int, number: int) -> None:
    """Send a signal to the rank, unless it has just ended: its status comes next."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(rank, number)


if __name__ == "__main__":
    main()
