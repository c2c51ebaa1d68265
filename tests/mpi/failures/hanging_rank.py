"""Worker 0 raises what nobody catches; worker 1 hears nothing of it, in the way that the first argument names.

Both write their process ids into the folder of the second argument, and worker 0 when it raised.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import coarse

LONG_S = 600
how, folder = sys.argv[1], Path(sys.argv[2])
coarse.init({"stall_timeout_s": 1})
(folder / f"{how} {coarse.rank()}").write_text(str(os.getpid()))
coarse.barrier()
if "--nobody raises" in sys.argv:
    signal.sigtimedwait([], LONG_S)
if coarse.rank() == 0:
    (folder / f"{how} raised").write_text(str(time.perf_counter()))
    raise coarse.StallError("worker 1 is late")
if how == "sleeps":
    signal.sigtimedwait([], LONG_S)
elif how == "loops":
    while True:
        pass
elif how == "holds the GIL":
    ctypes.PyDLL(None).sleep(LONG_S)
elif how == "is stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
