"""Every worker writes what it is told of the workers' world into the folder given, and can use no other."""

import json
import os
import sys
from pathlib import Path

import coarse
from coarse.errors import UnsupportedError
from tests.support.claims import raises

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in NAMES}
coarse.init()
from mpi4py import MPI  # noqa: E402  as a library that looks for it would, later

from coarse.transport.comm_world import COLLECTIVES  # noqa: E402  it starts MPI

assert (coarse.rank(), coarse.size()) == (int(told["RANK"]), int(told["WORLD_SIZE"]))
assert (coarse.local_rank(), coarse.local_size()) == (int(told["LOCAL_RANK"]), int(told["LOCAL_WORLD_SIZE"]))
world = MPI.COMM_WORLD
for name in COLLECTIVES:
    assert hasattr(MPI.Intracomm, name)
    with raises(UnsupportedError, f"{name} on MPI.COMM_WORLD would never return", "memory devices are among its 4"):
        getattr(world, name)()
workers = world.Create_group(world.Get_group().Incl(range(coarse.size())))
workers.Barrier()
Path(sys.argv[1], told["RANK"]).write_text(json.dumps(told))
