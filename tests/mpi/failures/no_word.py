"""All ranks meet over MPI; then again without rank 2, which sends nothing."""

from mpi4py import MPI

from coarse.protocol.clock import WallClock
from coarse.transport.meeting import meet

meet(MPI.COMM_WORLD, 30.0, WallClock())
print("have met", flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.Get_rank() == 2:
    MPI.COMM_WORLD.Recv(bytearray(1), source=0)  # until the job is aborted
try:
    meet(MPI.COMM_WORLD, 0.5, WallClock())
except Exception:
    import traceback

    traceback.print_exc()
    MPI.COMM_WORLD.Abort(1)
