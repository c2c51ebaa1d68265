"""What mpirun starts: has a process that has imported a library fork the rank, and stands for it below mpirun.

Arguments: the sockets of such processes, with commas between them, the rank's script and its arguments. Signals go on
to the rank, and as the rank ends this ends.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    paths = sys.argv[1].split(",")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(paths[int(os.environ["PMIX_RANK"]) % len(paths)])
        wanted = {"argv": sys.argv[2:], "environ": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(server, [json.dumps(wanted).encode()], [0, 1, 2])
        pid = int(server.recv(64))
        with suppress(ProcessLookupError):  # it may have ended; then its status comes next
            rank = os.pidfd_open(pid)
            for number in FORWARDED:
                signal.signal(number, lambda came, _: signal.pidfd_send_signal(rank, came))
        if not (said := server.recv(64)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            sys.exit("the process that forked this rank has ended")
    status = os.waitstatus_to_exitcode(int(said))
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
