"""The last worker, whose MPI rank is the first argument, never calls init; the others get their error.

With "MPI first" as the second argument the script has started MPI before.
"""

import os
import signal
import sys

import coarse

if sys.argv[2] == "MPI first":
    import mpi4py.MPI  # noqa: F401
if os.environ["PMIX_RANK"] == sys.argv[1]:
    signal.pause()
coarse.init({"startup_timeout_s": 1.0})
