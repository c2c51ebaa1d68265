"""Actions in a worker of `coarse run` beside its script: MPI's start, an end without `coarse.init()`.

startup/sitecustomize.py calls this. Under `torchrun` and plain mpirun nothing here is called.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from coarse import session
from coarse.transport.launcher import is_below_rank
from coarse.transport.node_rendezvous import LauncherLine


@contextmanager
def start_of_mpi() -> Iterator[None]:
    """Surround the loading of mpi4py.MPI, which starts MPI unless the script has told it not to.

    In an interpreter that is not the rank it starts nothing, and reports nothing.
    """
    if is_below_rank(os.environ, os.getpid(), sys.orig_argv):
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        yield
        return
    with LauncherLine(os.environ) as line:
        line.say_starts()
        yield
    from mpi4py import MPI

    if MPI.Is_initialized():
        _enter()
        return
    for name in ("Init", "Init_thread"):
        setattr(MPI, name, _entering(getattr(MPI, name)))


def _entering(start: Callable[..., object]) -> Callable[..., object]:
    @wraps(start)
    def start_and_enter(*args: object, **options: object) -> object:
        result = start(*args, **options)
        _enter()
        return result

    return start_and_enter


def _enter() -> None:
    """Make COMM_WORLD the workers' after MPI's start; none is alone from now on.

    A script that uses MPI without coarse can fail amid a collective, too; then it ends the job.
    """
    from coarse.transport.comm_world import on_finalize, workers_told

    with LauncherLine(os.environ) as line:
        line.say_met()
    told = workers_told()
    if told is not None:
        told.narrow_comm_world()
        on_finalize(leave)
    session.watch_over()


def leave() -> None:
    """Tell launcher and devices that this worker has not joined them, at the end of the script or of MPI."""
    from mpi4py import MPI

    if session.has_joined() or not MPI.Is_initialized():
        return
    from coarse.transport.comm_world import workers_told

    told = workers_told()
    if told is not None:
        with LauncherLine(os.environ) as line:
            line.say_left()
        told.say(comes=False)
