"""Starts once with each configuration file of a folder, and twice with something that rank 1 has differently.

Every rank writes the errors that it gets into one folder per configuration.
"""

import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

import coarse
from tests.support.claims import report_error

folder = Path(sys.argv[1])
rank = MPI.COMM_WORLD.Get_rank()
differing = {
    "differing": {"stall_timeout_s": 5.0 + rank % 2},
    "a variable on one rank": None,
}
for path in (*sorted(folder.glob("*.config")), *(folder / f"{name}.config" for name in differing)):
    given = path if path.exists() else differing[path.stem]
    path.with_suffix("").mkdir(exist_ok=True)
    os.environ.pop("COARSE_MODE", None)
    if given is None and rank == 1:
        os.environ["COARSE_MODE"] = "allreduce"
    began_s = time.perf_counter()
    try:
        coarse.init(given)
    except coarse.CoarseError as error:
        report_error(path.with_suffix(""), rank, time.perf_counter() - began_s, error)
