"""Starts with the configuration that the second argument names, or that rank 1 alone has different;
every rank writes the error it gets, and after how long."""

import sys
import time
from pathlib import Path

from mpi4py import MPI

import coarse
from coarse.errors import CoarseError

folder, source = Path(sys.argv[1]), sys.argv[2]
rank = MPI.COMM_WORLD.Get_rank()
config = {"stall_timeout_s": 5.0 + rank} if source == "differing" else source
began_s = time.perf_counter()
try:
    coarse.init(config)
except CoarseError as error:
    waited_s = time.perf_counter() - began_s
    (folder / f"rank{rank}").write_text(f"{waited_s}\n{type(error).__name__}\n{error}")
