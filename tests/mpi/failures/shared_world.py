"""Under plain mpirun devices share COMM_WORLD: its collectives say so after init, and workers have their own."""

import numpy as np

import coarse
from coarse.errors import UnsupportedError
from tests.support.claims import raises

coarse.init({"partition": "2:2"})
from mpi4py import MPI  # noqa: E402  as a library that looks for it would, later

from coarse.transport.comm_world import COLLECTIVES  # noqa: E402  it starts MPI

world = MPI.COMM_WORLD
for name in COLLECTIVES:
    assert hasattr(MPI.Intracomm, name)
    with raises(UnsupportedError, f"{name} on MPI.COMM_WORLD would never return", "memory devices are among its 4"):
        getattr(world, name)()
workers = coarse.workers_comm()
assert (workers.Get_rank(), workers.Get_size()) == (coarse.rank(), coarse.size()) == (world.Get_rank(), 2)
total = np.ones(1)
workers.Allreduce(MPI.IN_PLACE, total)
assert total[0] == 2
print(f"worker {coarse.rank()} ends", flush=True)
