"""One process without mpirun, which ends in the way that the first argument names."""

import os
import signal
import sys

import numpy as np

import coarse

coarse.init()
assert (coarse.push_pull(np.arange(4), "alone", coarse.Sum) == np.arange(4)).all()
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "raise":
    raise ArithmeticError("broken")
if sys.argv[1] == "exit":
    sys.exit(3)
