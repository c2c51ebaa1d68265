"""Watch of a rank over its mpirun, which ends the ranks of a job unless it is killed: then no process would.

The other way round, mpirun that has been told to abort waits for the daemon of a host that does not answer any more,
until TCP gives the host up: a quarter of an hour as Linux is set.

[Note: no signal of a parent's death] The kernel would signal a rank when the thread that started it ends (prctl's
PR_SET_PDEATHSIG), and mpirun, which has several, may end one earlier. A descriptor of the process knows no threads.
"""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from coarse.transport.launcher import joins_ranks, told_to_this_job

_DAEMONS = ("mpirun", "prterun", "prte", "prted")
"""Names of the program that starts ranks: mpirun's own on the first node, its daemon's on others."""
_GRACE_MS = 2000
"""Milliseconds that a rank has to end by itself, as below `coarse run`."""
ABORTED_S = 10
"""Seconds that mpirun has to end the ranks of living hosts and itself, once it was told to abort."""
_END_AFTER = """
import contextlib, os, select, signal, sys
daemon, seconds = int(sys.argv[1]), int(sys.argv[2])
waiting = select.poll()
waiting.register(daemon, select.POLLIN)
if not waiting.poll(1000 * seconds):
    with contextlib.suppress(OSError):
        os.write(os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND), sys.argv[4].encode())
    signal.pidfd_send_signal(daemon, signal.SIGKILL)
"""
"""The program that is left behind. It has none of the rank's streams, whose ends mpirun waits for."""


def daemon_above(process_id: int) -> int | None:
    """Return the process that is mpirun, or its daemon, among the ancestors of a process; None where none is."""
    while process_id > 0:
        try:
            name, _, rest = Path(f"/proc/{process_id}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            return None
        if name in _DAEMONS:
            return process_id
        process_id = int(rest.split()[1])
    return None


def end_after_abort(environ: Mapping[str, str], process_id: int, seconds: int = ABORTED_S) -> None:
    """Leave a process behind that kills the mpirun of a rank, or its daemon, unless that ends by itself.

    Where there is none, or where `coarse run` ends the ranks, it does nothing.

    Args:
        environ: the environment of the rank.
        process_id: the rank.
        seconds: what mpirun has to end.
    """
    daemon = None
    if joins_ranks(environ) and "COARSE_LAUNCHER" not in told_to_this_job(environ):
        daemon = daemon_above(process_id)
    if daemon is None:
        return
    text = f"coarse: {seconds} s after the job's abort mpirun waits for a host that does not answer; it is killed\n"
    try:
        descriptor = os.pidfd_open(daemon)
    except ProcessLookupError:  # it has just ended
        return
    arguments = [str(descriptor), str(seconds), f"/proc/{daemon}/fd/2", text]
    command, nothing = [sys.executable, "-I", "-S", "-c", _END_AFTER, *arguments], subprocess.DEVNULL
    subprocess.Popen(
        command, pass_fds=[descriptor], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    os.close(descriptor)


class MpirunWatch:
    """A thread that ends this process once a process has ended: by SIGTERM, and by SIGKILL 2 seconds later."""

    def __init__(self, daemon: int) -> None:
        self._daemon = os.pidfd_open(daemon)
        self._closed = os.eventfd(0)
        self._thread = threading.Thread(target=self._wait, name="coarse-mpirun", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """Return a watch over the mpirun of this rank; None where there is none, or `coarse run` ends the ranks."""
        if not joins_ranks(environ) or "COARSE_LAUNCHER" in told_to_this_job(environ):
            return None
        daemon = daemon_above(os.getpid())
        return None if daemon is None else cls(daemon)

    def close(self) -> None:
        """Let this process outlive its mpirun from now on."""
        os.eventfd_write(self._closed, 1)
        self._thread.join()
        os.close(self._daemon)
        os.close(self._closed)

    def _wait(self) -> None:
        waiting = select.poll()
        waiting.register(self._daemon, select.POLLIN)
        waiting.register(self._closed, select.POLLIN)
        if self._closed in dict(waiting.poll()):
            return
        waiting.unregister(self._daemon)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)  # so that what it waits for in the kernel is interrupted
        if not waiting.poll(_GRACE_MS):
            os.kill(os.getpid(), signal.SIGKILL)
