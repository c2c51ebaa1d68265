"""The last worker ends before it calls init, in the way that the first argument names; the other waits there.

Both write their process ids into the folder of the second argument, and the last worker when it ended.
"""

import os
import signal
import sys
import time
from pathlib import Path

import psutil

import coarse

LATE_S = 2.0
how, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["PMIX_RANK"])
(folder / f"pid{rank}").write_text(str(os.getpid()))


def device() -> psutil.Process:
    """The memory device's process, once it has started."""
    mpirun = psutil.Process().parents()[1]
    while True:
        for process in mpirun.children(recursive=True):
            command = process.cmdline()
            if "coarse.launch.device" in command and not any("exit_reporter.py" in word for word in command):
                return process


if how == "MPI first":
    import mpi4py.MPI  # noqa: F401

    coarse.init()
    print("the end", flush=True)
    sys.exit(0)
if how == "wrong config":
    coarse.init({"mode": "wrong"})
if how in ("never", "one is late"):
    signal.sigtimedwait([], LATE_S * rank * (how == "one is late"))
    print("the end", flush=True)
    sys.exit(0)
if rank == 1:
    if how == "exit late":
        signal.sigtimedwait([], LATE_S)
    (folder / "ended").write_text(str(time.perf_counter()))
    if how == "raise":
        raise ArithmeticError("the worker is broken")
    if how.startswith("exit"):
        sys.exit({"exit 5": 5, "exit 0": 0, "exit late": 7}[how])
    if how == "kill itself":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill its watcher":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    if how == "kill a device":
        device().kill()
coarse.init()
