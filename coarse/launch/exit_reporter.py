"""Program that runs and reports one rank's command: `python -I -S exit_reporter.py PLACE COMMAND ...`.

It tells `coarse run` how the command ended. Under ULFM mpirun goes on when a rank ends, and keeps its status to itself.
This process has the rank as its child, so that it learns the status even of a rank that never imported coarse. It needs
nothing but the standard library; started by path, with -I and -S, it takes less than 50 ms and 5 MiB of its own.

It speaks to the launcher in lines over a Unix socket: "3 runs", "3 ended -9"; the rank itself says "3 waits", "3
joined", "3 fails 1 DIGEST" or "3 follows" and, of the bytes that it moved, "3 carried SENT RECEIVED" or "3 reduced
BYTES" (coarse.transport.node_rendezvous). The launcher says "interrupt" if Ctrl-C is for the script: a worker gets
SIGINT, a memory device serves on. It ends with mpirun, and ends the rank if the launcher is gone, however that ended.

PLACE is "-" for a memory device. Of a worker it is seven fields with commas between them, and the rank finds its place
in the workers' world in the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT), and in Open MPI's, which counted memory devices too; what they said goes to COARSE_JOB. The interpreter
then begins with startup/sitecustomize.py, which makes MPI.COMM_WORLD the workers'.

COARSE_NAMESPACE names the job for which all this holds: a rank may start another, whose ranks inherit the variables.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_WORD_BYTES = 64
_GRACE_MS = 2000
"""Milliseconds that a rank whose launcher is gone has to end by itself."""
_FOR_THE_RANK = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
"""Signals that mpirun sends to a rank's whole process group; this process outlives the rank."""
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""Folder that is first on the path of a worker's interpreter."""


def escaped(argument: str) -> str:
    """Return an argument for the line of an mpirun, for which a colon alone begins another program."""
    return f"\\{argument}" if argument.lstrip("\\") == ":" else argument


def unescaped(argument: str) -> str:
    """Return the argument that `escaped` was given."""
    return argument[1:] if argument.startswith("\\") and argument.lstrip("\\") == ":" else argument


def main(place: str, command: list[str]) -> None:
    """Become the command, or with a launcher have it as a child and end as it ended."""
    launcher, rank = os.environ.get("COARSE_LAUNCHER"), os.environ.get("PMIX_RANK")
    if place != "-" and rank is not None:
        os.environ.update(_workers_world(place, int(rank), os.environ))
    os.environ["COARSE_NAMESPACE"] = os.environ.get("PMIX_NAMESPACE", "")
    if launcher is None or rank is None:
        os.execvp(command[0], command)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        try:
            channel.connect(launcher.replace("@", "\0", 1))
        except OSError:  # the launcher is gone, or on another host
            os.execvp(command[0], command)
        channel.sendall(f"{rank} runs\n".encode())
        status = _run(command, channel, takes_interrupts=place != "-")
        with contextlib.suppress(OSError):  # the launcher is gone and needs no word
            channel.sendall(f"{rank} ended {status}\n".encode())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _workers_world(place: str, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker.

    Its context's first MPI rank has the worker's and local rank that PLACE tells.
    """
    first, worker, local, size, local_size, address, port = place.split(",")
    own, own_local = str(int(worker) + rank - int(first)), str(int(local) + rank - int(first))
    before = (environ[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    paths = [path for path in (environ.get("PYTHONPATH"),) if path]
    return {
        "RANK": own,
        "LOCAL_RANK": own_local,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "COARSE_JOB": ",".join(before),
        "OMPI_COMM_WORLD_RANK": own,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": own_local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        "OMPI_COMM_WORLD_NODE_RANK": own_local,
        "OMPI_UNIVERSE_SIZE": size,
        "PYTHONPATH": os.pathsep.join([STARTUP, *paths]),
    }


def _run(command: list[str], channel: socket.socket, *, takes_interrupts: bool) -> int:
    """Return the exit status of the command, run as a child that ends with this process; -n for signal n."""
    _die_with_parent()
    child = os.fork()
    if not child:
        _die_with_parent()
        os.execvp(command[0], command)
    for number in _FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    ended = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(channel, select.POLLIN | select.POLLRDHUP)
    while ended not in dict(waiting.poll()):
        if _hears(channel):
            if takes_interrupts:
                os.kill(child, signal.SIGINT)
            continue
        waiting.unregister(channel)
        os.kill(child, signal.SIGTERM)
        if not waiting.poll(_GRACE_MS):
            os.kill(child, signal.SIGKILL)
        break
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _hears(channel: socket.socket) -> bool:
    """Return whether the launcher has said something, which can only be an interrupt.

    Else its socket is closed.
    """
    try:
        return bool(channel.recv(_WORD_BYTES))
    except OSError:
        return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], [unescaped(argument) for argument in sys.argv[2:]])
