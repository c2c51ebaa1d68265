"""Worker 1 kills a memory device while the others compute, waiting for nothing.

With "ask to end" each worker then gets the signal by which mpirun asks survivors to end.
"""

import os
import select
import signal
import sys
from pathlib import Path

from mpi4py import MPI

import coarse

folder, asks_to_end = Path(sys.argv[1]), "ask to end" in sys.argv
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))
coarse.init()
victim = int((folder / f"pid{MPI.COMM_WORLD.Get_size() - 1}").read_text())
end_of_victim = os.pidfd_open(victim)
coarse.barrier()
if coarse.rank() == 1:
    os.kill(victim, signal.SIGKILL)
if asks_to_end:
    select.select([end_of_victim], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
while True:
    sum(range(1000))
