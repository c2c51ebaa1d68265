"""The last worker ends while worker 0 waits for it, in the way that the first argument names.

Every rank writes its process id into the folder of the second argument; worker 0 then waits for a
name that will not come, and writes the error that it gets, unless mpirun ends it before.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from coarse.proxy.device import Device
from tests.support.claims import report_error

how, folder = sys.argv[1], Path(sys.argv[2])
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))


def reduce_wrongly(device: Device, work: object) -> None:
    raise ArithmeticError("the sync core is broken")


def end() -> None:
    """What the last worker does."""
    (folder / "ended").write_text(str(time.perf_counter()))
    if how == "raise":
        raise ArithmeticError("the worker is broken")
    if how in ("exit", "exit without join"):
        sys.exit(3)
    if how == "shut down":
        coarse.shutdown()
    if how == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    if how == "interrupt itself":
        os.kill(os.getpid(), signal.SIGINT)
    if how == "fault":
        coarse.push_pull(np.ones(5), "awaited")
    if how == "kill all":
        for path in sorted(folder.glob("pid*"), key=lambda path: path.name == f"pid{rank}"):
            os.kill(int(path.read_text()), signal.SIGKILL)


if how == "fault":
    Device.reduce = reduce_wrongly  # type: ignore[method-assign]
coarse.init()
if how == "exit without join":
    import coarse.torch

    coarse.barrier()  # nobody ends before all have imported, which takes long
if coarse.rank() == coarse.size() - 1:
    end()
    sys.exit(0)
try:
    if how == "exit without join":
        coarse.torch.join()
    coarse.push_pull(np.ones(5), "awaited")
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "ended").read_text())
    report_error(folder, rank, waited_s, error)
    raise
