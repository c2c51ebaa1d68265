"""Worker 0 sends `coarse run`, mpirun's parent, the signal that the first argument names; the second is a folder.

SIGINT, as by Ctrl-C: all workers first write their process ids into the folder, and then do nothing more.
SIGUSR1, as a scheduler warns of its time limit: all workers then sum once more, and write the sum into the folder.
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
if number == signal.SIGINT:
    written.write_text(str(os.getpid()))
else:
    signal.signal(number, lambda number, _: warnings.append(number))
coarse.barrier()
if coarse.rank() == 0:
    (launcher,) = (parent for parent in psutil.Process().parents() if "run" in parent.cmdline())
    launcher.send_signal(number)
if number == signal.SIGINT:
    signal.pause()
while not warnings:
    time.sleep(0.01)
total = coarse.push_pull(np.ones(3, np.float32), "after", coarse.Sum)
written.write_text(str(total.tolist()))
