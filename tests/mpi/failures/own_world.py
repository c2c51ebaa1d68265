"""An mpi4py script as its users write it, under `coarse run`; the argument says what it does besides.

"plain": it uses collectives and ends. "finalizes": it ends MPI itself. "joins": it calls coarse.init() in the middle.
"raises": worker 1 raises while the other is in a collective. "aborts": worker 1 aborts. "one leaves": worker 1 ends
before it starts MPI. "one stays": worker 0 calls coarse.init(), and worker 1 ends.

"starts MPI itself", "was looked for": mpi4py is told not to start MPI, or only found, before it is imported.
"is executed anew", "runs in a child": another interpreter does all that. "joins and finalizes", "finalizes and joins":
what becomes of coarse.init() before and after the script ends MPI. "hooks": worker 1 raises, and has a hook for that.
"""

import copy
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

how = sys.argv[1]
if how in ("is executed anew", "runs in a child") and "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "once"
    command = [sys.executable, *sys.argv]
    if how == "runs in a child":
        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(sys.executable, command)
if how == "was looked for":
    assert find_spec("mpi4py.MPI") is not None
if how == "starts MPI itself":
    import mpi4py

    mpi4py.rc.initialize = False
if how == "hooks":
    sys.excepthook = lambda *_: print("my hook", flush=True)
if how == "one leaves" and os.environ["RANK"] == "1":
    sys.exit(0)
from mpi4py import MPI  # noqa: E402

if how == "starts MPI itself":
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) == (rank, 2)
for name, told in (("RANK", rank), ("SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_SIZE", size)):
    assert os.environ[f"OMPI_COMM_WORLD_{name}"] == str(told)
seen = np.empty(2, np.int64)
world.Allgather(np.array([rank]), seen)
assert seen.tolist() == [0, 1]
total = np.array([rank + 1.0])
world.Allreduce(MPI.IN_PLACE, total)
assert total[0] == 3
assert world.Split(rank).Get_size() == 1
assert world.Get_name() == "MPI_COMM_WORLD"
assert copy.deepcopy(world) is world  # as pickle goes about it
assert world.Get_attr(MPI.TAG_UB) > 1 << 20
assert not any("startup" in path for path in sys.path)
for method in (world.Free, world.Disconnect):
    with pytest.raises(MPI.Exception) as refused:
        method()
    assert refused.value.Get_error_class() == MPI.ERR_COMM
duplicate = world.Dup()
duplicate.Free()
if how == "finalizes and joins":
    MPI.Finalize()
if (how == "one stays" and rank == 0) or "joins" in how:
    import coarse

    coarse.init()
    assert coarse.push_pull(np.full(3, rank, np.float32), "mean").tolist() == [0.5] * 3
    coarse.workers_comm().Allreduce(MPI.IN_PLACE, total)
    assert total[0] == 6
    assert (coarse.workers_comm().Get_size(), coarse.workers_comm() != MPI.COMM_WORLD) == (2, True)
if how in ("raises", "hooks", "aborts"):
    if rank == 1:
        if how != "aborts":
            raise ArithmeticError("the worker is broken")
        world.Abort(5)
    world.Barrier()
print(f"worker {rank} ends", flush=True)
if how in ("finalizes", "joins and finalizes"):
    MPI.Finalize()
