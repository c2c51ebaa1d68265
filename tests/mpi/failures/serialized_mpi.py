"""Starts MPI for one thread at a time, and writes the error that `init` then raises into the folder given."""

import sys
import time
from pathlib import Path

import mpi4py

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI  # noqa: E402  as the line before says

import coarse  # noqa: E402
from tests.support.claims import report_error  # noqa: E402

began_s = time.perf_counter()
try:
    coarse.init()
except coarse.CoarseError as error:
    report_error(Path(sys.argv[1]), MPI.COMM_WORLD.Get_rank(), time.perf_counter() - began_s, error)
