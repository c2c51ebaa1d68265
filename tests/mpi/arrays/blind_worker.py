"""Starts where worker 0 does not see the GPU on which a memory device has its memory; every rank writes its error.

Arguments: the folder to write to.
"""

import sys
import time

from mpi4py import MPI

import coarse
from coarse.gpu.available import use
from tests.support.claims import report_error
from tests.support.gpu_stand_in import StandInGpus

rank = MPI.COMM_WORLD.Get_rank()
use(StandInGpus(2, hidden=[0] if rank == 0 else []))
began_s = time.perf_counter()
try:
    coarse.init()
except coarse.CoarseError as error:
    report_error(sys.argv[1], rank, time.perf_counter() - began_s, error)
