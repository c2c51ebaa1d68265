"""Program that imports libraries, then forks a rank for each that asks, until standard input ends.

A rank asks by stand_in.py. Arguments: the socket's path, MODULE:FUNCTION that runs a rank's program (whose name and
arguments are sys.argv[1:]), and the modules to import, of which one with a "?" before it may be missing. MPI's library
is loaded, and MPI not started: mpi4py.MPI is not imported.
"""

import atexit
import ctypes
import gc
import importlib
import importlib.util
import os
import random
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

_PR_SET_PDEATHSIG = 1
LONGEST = 1 << 17
"""Bytes of a request by a rank's stand-in, its environment included."""


class Ranks:
    """Ranks forked so far that have not ended, by the connections of their stand-ins below mpirun."""

    def __init__(self, listener: socket.socket) -> None:
        self._pids: dict[socket.socket, int] = {}
        self._listener = listener
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ, self._fork)
        self._events.register(sys.stdin.fileno(), selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        """Return in each process that is forked, once it is the rank; never in this one."""
        while True:
            for key, _ in self._events.select():
                if key.fd in self._events.get_map() and key.data():
                    return

    def _fork(self) -> bool:
        """Fork a rank; return whether this process is it."""
        stand_in, _ = self._listener.accept()
        text, streams, _, _ = socket.recv_fds(stand_in, LONGEST, 3)
        if not text or _user_of(stand_in) != os.geteuid():  # ended before it asked, or is nobody's of ours
            for stream in streams:
                os.close(stream)
            stand_in.close()
            return False
        server = os.getpid()
        if not (pid := os.fork()):
            _die_with(server)
            stand_in.close()
            self._close()
            _become(os.fsdecode(text), streams)
            return True
        for stream in streams:
            os.close(stream)
        self._pids[stand_in] = pid
        self._events.register(stand_in, selectors.EVENT_READ, partial(self._kill, stand_in))
        ended = os.pidfd_open(pid)
        self._events.register(ended, selectors.EVENT_READ, partial(self._report, stand_in, ended))
        _send(stand_in, pid)
        return False

    def _kill(self, stand_in: socket.socket) -> None:
        """End a rank whose stand-in has ended, since nothing else comes from it."""
        self._events.unregister(stand_in)
        os.kill(self._pids[stand_in], signal.SIGKILL)

    def _report(self, stand_in: socket.socket, ended: int) -> None:
        """Tell how a rank ended."""
        _, status = os.waitpid(self._pids.pop(stand_in), 0)
        self._events.unregister(ended)
        os.close(ended)
        if stand_in.fileno() in self._events.get_map():
            self._events.unregister(stand_in)
            _send(stand_in, status)
        stand_in.close()

    def _end(self) -> None:
        """End all ranks and this process, since the process that tests has ended."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        path = Path(self._listener.getsockname())
        path.unlink()
        with suppress(OSError):  # another one's socket is there too
            path.parent.rmdir()
        sys.exit()

    def _close(self) -> None:
        """Close the server's files, in a rank, which gets standard input of its own."""
        for key in [*self._events.get_map().values()]:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd != sys.stdin.fileno():
                os.close(key.fd)
        self._events.close()


def _user_of(channel: socket.socket) -> int:
    """Return the user whose process is at the other end."""
    _, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def _die_with(parent: int) -> None:
    """Have this process end when the one that forked it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _send(stand_in: socket.socket, number: int) -> None:
    """Send a number to a rank's stand-in; if that has ended it is seen next."""
    with suppress(BrokenPipeError):
        stand_in.send(str(number).encode())


def _become(wanted: str, streams: list[int]) -> None:
    """Be the process that mpirun started: its folder, arguments, environment and streams."""
    folder, num_arguments, *texts = wanted.split("\0")
    argv, variables = texts[: int(num_arguments)], texts[int(num_arguments) :]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    hash_seed = os.environ["PYTHONHASHSEED"]
    os.environ.clear()
    os.environ.update((name, value) for name, _, value in (variable.partition("=") for variable in variables))
    os.environ["PYTHONHASHSEED"] = hash_seed
    os.chdir(folder)
    sys.argv[1:] = argv
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as below mpirun, also where what tests ignores it
    random.seed()
    np.random.seed()  # as if numpy were imported now


def _import(modules: list[str]) -> None:
    """Import modules, without starting MPI."""
    mpi = "mpi4py.MPI"
    sys.modules[mpi] = None  # type: ignore[assignment]  # an import of it is a ModuleNotFoundError
    for module in modules:
        with suppress(*((Exception,) if module.startswith("?") else ())):
            importlib.import_module(module.removeprefix("?"))
    del sys.modules[mpi]
    with suppress(Exception):
        importlib.util.find_spec(mpi)  # mpi4py loads the library to see whose it is


def main() -> None:
    """Serve; in each process that is forked, be the rank to its end."""
    path, entry, *modules = sys.argv[1:]
    del sys.path[0]  # the folder of this file
    _import(modules)
    module, _, function = entry.partition(":")
    run = getattr(importlib.import_module(module), function)
    gc.freeze()  # so that ranks share these objects' pages
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(sys.stdout.fileno(), b"listens\n")
        Ranks(listener).serve()
    _run_to_the_end(run)


def _run_to_the_end(run: Callable[[], None]) -> None:
    """Run the rank's program and end as an interpreter does, but for the ends of all modules' objects.

    These write to every page that the ranks share, which takes 30 ms of the processor, and 300 ms where torch is.
    """
    status = 0
    try:
        run()
    except KeyboardInterrupt:  # of which the interpreter makes a signal
        raise
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads that are no daemons
    atexit._run_exitfuncs()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        ctypes.PyDLL(mpi.__file__).MPI_Finalize()  # no other thread gets the interpreter any more, as at its own end
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
