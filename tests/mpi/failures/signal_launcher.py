"""Worker 0 sends its launcher the signal that the first argument names; the second is a folder.

It is `coarse run`, mpirun's parent, or where there is none mpirun.

SIGINT, as by Ctrl-C: all workers first write their process ids into the folder, and then do nothing more; with a third
argument they sum once more on KeyboardInterrupt, and write the sum.
SIGUSR1 or SIGUSR2, as a scheduler warns of its time limit: all workers then sum once more, and write the sum.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil

import coarse

number, folder = signal.Signals[sys.argv[1]], Path(sys.argv[2])
warnings: list[int] = []
coarse.init()
written = folder / str(coarse.rank())


def send() -> None:
    """On worker 0, to the launcher."""
    if coarse.rank() == 0:
        mpirun = next(parent for parent in psutil.Process().parents() if parent.name() in ("mpirun", "prterun"))
        parent = mpirun.parent()
        assert parent is not None
        (parent if "run" in parent.cmdline() else mpirun).send_signal(number)


if number == signal.SIGINT:
    coarse.barrier()
    try:
        written.write_text(str(os.getpid()))
        while len(list(folder.iterdir())) < coarse.size():
            time.sleep(0.01)
        send()
        signal.pause()
    except KeyboardInterrupt as interrupt:
        if len(sys.argv) == 3:
            raise
        warnings.append(len(str(interrupt)))
else:
    signal.signal(number, lambda number, _: warnings.append(number))
    coarse.barrier()
    send()
while not warnings:
    time.sleep(0.01)
total = coarse.push_pull(np.ones(3, np.float32), "after", coarse.Sum)
written.write_text(str(total.tolist()))
