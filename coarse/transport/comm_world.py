"""MPI.COMM_WORLD of a worker, whose collectives would wait for memory devices, which never call them.

Libraries that find mpi4py take COMM_WORLD for the workers' world (Lightning's MPIEnvironment splits it, say) and would
hang for ever. Importing this module starts MPI.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from mpi4py import MPI

from coarse.errors import UnsupportedError

_PICKLED = ("barrier", "bcast", "gather", "allgather", "scatter", "alltoall", "allreduce", "reduce", "scan", "exscan")
_OF_BUFFERS = (
    *(name.capitalize() for name in _PICKLED),
    *("Gatherv", "Allgatherv", "Scatterv", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block"),
)
COLLECTIVES = (
    *_PICKLED, *_OF_BUFFERS, *(f"I{name.lower()}" for name in _OF_BUFFERS),
    "Split", "Split_type", "Dup", "Dup_with_info", "Idup", "Create", "Clone", "Create_cart", "Create_graph",
)  # fmt: skip
"""Of a communicator, the methods that return once all its ranks have called them."""


class WorkersView(MPI.Intracomm):
    """The same communicator: ranks, messages and Abort are MPI's, and each collective says why it cannot be."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkersView, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"MPI rank {self.Get_rank()}: {name} on MPI.COMM_WORLD would never return, since memory devices are among "
            f"its {self.Get_size()} ranks and take no part; make a communicator of the workers (coarse run tells each "
            "its RANK and WORLD_SIZE), or use coarse's own collectives"
        )

    refuse.__name__ = name
    return refuse


for _name in COLLECTIVES:
    setattr(WorkersView, _name, _refusal(_name))


def guard_comm_world() -> None:
    """From now on whoever asks mpi4py for COMM_WORLD in this process is told instead of left to hang."""
    module: Any = MPI
    if not isinstance(module.COMM_WORLD, WorkersView):
        module.COMM_WORLD = WorkersView(module.COMM_WORLD)
