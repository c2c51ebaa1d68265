"""Worker 0 interrupts `coarse run`, mpirun's parent, once all workers wrote their process ids into a folder."""

import os
import signal
import sys
from pathlib import Path

import psutil

import coarse

coarse.init()
(Path(sys.argv[1]) / str(coarse.rank())).write_text(str(os.getpid()))
coarse.barrier()
if coarse.rank() == 0:
    (launcher,) = (parent for parent in psutil.Process().parents() if "run" in parent.cmdline())
    launcher.send_signal(signal.SIGINT)
signal.pause()
