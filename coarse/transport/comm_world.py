"""MPI's worlds: the whole job's, which coarse uses, and what a worker's script finds as MPI.COMM_WORLD.

Memory devices are ranks of the job. Where a launcher tells who the workers are (COARSE_WORKERS), their COMM_WORLD in
mpi4py is a communicator of workers alone, from the moment at which mpi4py starts MPI. Under plain mpirun the partition
is known after `coarse.init()` only; until then COMM_WORLD is everybody's, and from then on each of its collectives,
which would wait for devices that never call it, says why it cannot be.

Importing this module starts MPI.
"""

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from coarse.errors import CoarseError, ConfigError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.protocol.records import Tag
from coarse.transport.launcher import LauncherKind, innermost_launcher, told_to_this_job
from coarse.transport.mpi_library import loaded_library

WHOLE: MPI.Intracomm = MPI.COMM_WORLD
"""Communicator of all ranks of the job, under any COMM_WORLD that a script finds."""

_PICKLED = ("barrier", "bcast", "gather", "allgather", "scatter", "alltoall", "allreduce", "reduce", "scan", "exscan")
_OF_BUFFERS = (
    *(name.capitalize() for name in _PICKLED),
    *("Gatherv", "Allgatherv", "Scatterv", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block"),
)
COLLECTIVES = (
    *_PICKLED, *_OF_BUFFERS, *(f"I{name.lower()}" for name in _OF_BUFFERS),
    "Split", "Split_type", "Dup", "Dup_with_info", "Idup", "Create", "Clone", "Create_cart", "Create_graph",
)  # fmt: skip
"""Names of a communicator's methods that return once all its ranks have called them."""

_LOOK_AGAIN_S = 0.002


class WorkersView(MPI.Intracomm):
    """View of the same communicator: ranks, messages and Abort are MPI's, and each collective says why it cannot be."""


_OF_COMM_WORLD = (MPI.TAG_UB, MPI.IO, MPI.WTIME_IS_GLOBAL, MPI.UNIVERSE_SIZE, MPI.APPNUM, MPI.LASTUSEDCODE)
"""Attributes that MPI gives COMM_WORLD, and no other communicator has up to date."""


class WorkersWorld(MPI.Intracomm):
    """The workers, as COMM_WORLD: what MPI grants or forbids COMM_WORLD alone holds for it, and for none made of it."""

    @property
    def _is_world(self) -> bool:
        return bool(self == _comm_world())  # a duplicate has this class, too

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End all ranks of the job, memory devices too."""
        WHOLE.Abort(errorcode)

    def Free(self) -> None:
        """Raise MPI's error for COMM_WORLD."""
        if self._is_world:
            raise MPI.Exception(MPI.ERR_COMM)
        super().Free()

    def Disconnect(self) -> None:
        """Raise MPI's error for COMM_WORLD."""
        if self._is_world:
            raise MPI.Exception(MPI.ERR_COMM)
        super().Disconnect()

    def Get_attr(self, keyval: int) -> object:
        """Return an attribute; those that MPI sets itself are the whole world's."""
        return WHOLE.Get_attr(keyval) if self._is_world and keyval in _OF_COMM_WORLD else super().Get_attr(keyval)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Reduce to COMM_WORLD by name for pickling, as mpi4py's own does."""
        return (_comm_world, ()) if self._is_world else super().__reduce__()


def _comm_world() -> MPI.Intracomm:
    return MPI.COMM_WORLD


class WorkersTold:
    """The workers of a job as its launcher tells all ranks, and the devices' wait for whether they come.

    A script may use MPI and leave without `coarse.init()`. Then devices must leave, too, for MPI_Finalize waits for
    them. So before anything that all ranks do together they wait for one byte from the first worker.
    """

    def __init__(self, workers: tuple[int, ...]) -> None:
        """`workers` are ranks of the whole world, in order."""
        self._workers = workers
        self._said = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "WorkersTold | None":
        """Return the launcher's word on workers; None under plain mpirun, or if all ranks are workers."""
        text = told_to_this_job(environ).get("COARSE_WORKERS")
        workers = tuple(int(rank) for rank in text.split(",")) if text else ()
        return cls(workers) if 0 < len(workers) < WHOLE.Get_size() else None

    @property
    def includes_this_rank(self) -> bool:
        """True if this rank is a worker."""
        return WHOLE.Get_rank() in self._workers

    def narrow_comm_world(self) -> None:
        """Make mpi4py's COMM_WORLD the workers'; a collective of the workers."""
        module: Any = MPI
        if isinstance(module.COMM_WORLD, WorkersWorld):
            return
        comm = WHOLE.Create_group(WHOLE.Get_group().Incl(self._workers), int(Tag.WORKERS))
        comm.Set_name("MPI_COMM_WORLD")
        module.COMM_WORLD = WorkersWorld(comm)

    def say(self, *, comes: bool) -> None:
        """Tell the devices, once, whether workers join them; the first worker's word is all workers'."""
        if self._said:
            return
        self._said = True
        if WHOLE.Get_rank() == self._workers[0]:
            for rank in sorted(set(range(WHOLE.Get_size())) - set(self._workers)):
                WHOLE.Send([np.array([comes], np.uint8), MPI.BYTE], dest=rank, tag=int(Tag.WORKERS))

    def come(self, clock: WallClock) -> bool:
        """Return, on a memory device, whether the workers come, once that is known."""
        word = np.zeros(1, np.uint8)
        try:
            while not WHOLE.Iprobe(source=self._workers[0], tag=int(Tag.WORKERS)):
                clock.sleep_s(_LOOK_AGAIN_S)
            WHOLE.Recv([word, MPI.BYTE], source=self._workers[0], tag=int(Tag.WORKERS))
        except MPI.Exception:  # that worker has died, and says nothing any more
            return False
        return bool(word[0])


def require_others(environ: Mapping[str, str], *, may_be_alone: bool) -> None:
    """Raise ConfigError if a launcher started several ranks, and MPI has joined this one with none of them."""
    launcher = innermost_launcher(environ)
    if may_be_alone or launcher is None or launcher.num_ranks == 1 or WHOLE.Get_size() > 1:
        return
    remedy = {
        LauncherKind.SRUN: "start it by srun --mpi=pmix, if this Slurm has PMIx (srun --mpi=list), or by mpirun",
        LauncherKind.PMIX: "start it by mpirun, since this Slurm's PMIx and that of Open MPI do not fit",
    }.get(launcher.kind, "start it by the mpirun of the same Open MPI 5, which stands beside this Python")
    raise ConfigError(
        f"rank {launcher.rank}: {launcher.kind.value} started {launcher.num_ranks} ranks ({launcher.told_by}), and MPI "
        f"({loaded_library()}) has joined this one with none of the others, so that each would train by itself; "
        f"{remedy}, or by coarse run. If each is to train by itself, say alone = true in [launch] of the configuration",
        key="alone",
    )


@functools.cache
def workers_told() -> WorkersTold | None:
    """Return the launcher's word on this job's workers, or None; MPI has started."""
    return WorkersTold.of(os.environ)


def on_finalize(call: Callable[[], None]) -> None:
    """Have `call` called when the script ends MPI itself: MPI_Finalize deletes attributes of COMM_SELF first."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: call())
    MPI.COMM_SELF.Set_attr(keyval, None)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkersView, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"MPI rank {self.Get_rank()}: {name} on MPI.COMM_WORLD would never return, since memory devices are among "
            f"its {self.Get_size()} ranks and take no part; take coarse.workers_comm(), or start the script by "
            "coarse run, whose workers have a COMM_WORLD of their own"
        )

    refuse.__name__ = name
    return refuse


def wait_within(context: Callable[[str, bool], AbstractContextManager[None]]) -> None:
    """Have every collective of the workers' COMM_WORLD that blocks run within a context.

    Args:
        context: Called with the collective's name, and whether all workers take part: communicators made of COMM_WORLD
            may have fewer.
    """
    for name in (*_PICKLED, *_OF_BUFFERS):
        setattr(WorkersWorld, name, _within(name, context))


def _within(name: str, context: Callable[[str, bool], AbstractContextManager[None]]) -> Callable[..., object]:
    def call(self: WorkersWorld, *arguments: object, **options: object) -> object:
        with context(name, self._is_world):
            return getattr(MPI.Intracomm, name)(self, *arguments, **options)

    call.__name__ = name
    return call


for _name in COLLECTIVES:
    setattr(WorkersView, _name, _refusal(_name))


def guard_comm_world() -> None:
    """Have mpi4py's COMM_WORLD raise an error from now on, instead of hanging; no effect where it is the workers'."""
    module: Any = MPI
    if not isinstance(module.COMM_WORLD, WorkersView | WorkersWorld):
        module.COMM_WORLD = WorkersView(module.COMM_WORLD)


def lack_of_threads() -> CoarseError | None:
    """Return why this MPI cannot be called by a progress thread beside others; None if it can."""
    levels = ("single", "funneled", "serialized", "multiple")
    level = levels[MPI.Query_thread()]
    if level == levels[-1]:
        return None
    return UnsupportedError(
        f"MPI was started with MPI_THREAD_{level.upper()}, and coarse calls it from threads of its own; have mpi4py "
        "start it with thread_level='multiple', its default, or use an MPI library built for that"
    )
