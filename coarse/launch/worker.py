"""What happens in a worker of `coarse run` beside its script: MPI's start, and an end without `coarse.init()`.

startup/sitecustomize.py calls this. Under `torchrun` and plain mpirun nothing here is called.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from coarse import session
from coarse.transport.arrival import LauncherLine

_MPI = "mpi4py.MPI"


@contextmanager
def start_of_mpi() -> Iterator[None]:
    """Around the loading of mpi4py.MPI, which starts MPI: afterwards COMM_WORLD is the workers'.

    A script that uses MPI without coarse can fail amid a collective, too; then it ends the job.
    """
    with LauncherLine(os.environ) as line:
        line.say_starts()
        yield
    from coarse.transport.comm_world import WORKERS, on_finalize

    if WORKERS is not None:
        WORKERS.narrow_comm_world()
        on_finalize(leave)
    session.watch_over()


def leave() -> None:
    """At the end of the script, or of MPI: tell launcher and devices where this worker has not joined them."""
    if session.has_joined():
        return
    with LauncherLine(os.environ) as line:
        line.say_left()
        if _MPI in sys.modules or _has_met_by_torch():
            line.say_met()
    if _MPI in sys.modules:
        from coarse.transport.comm_world import WORKERS

        if WORKERS is not None:
            WORKERS.say(comes=False)


def _has_met_by_torch() -> bool:
    """Whether the script has made torch.distributed's process group, which may be gone since."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return getattr(c10d, "_default_pg_init_method", None) is not None
