"""The second memory device is stopped; both workers print the error of a name that it shares, and then get its sum."""

import os
import signal

import numpy as np
from mpi4py import MPI

import coarse

COMM = MPI.COMM_WORLD
ROUTING = {"policy": "fixed", "threshold_bytes": 0, "partition_bytes": 4096, "latency_proxy": 0, "bandwidth_proxy": 0}

pids = np.empty(COMM.Get_size(), np.int64)
COMM.Allgather(np.array([os.getpid()], np.int64), pids)
workers = COMM.Split(int(COMM.Get_rank() < 2))  # devices are of the other part
coarse.init({"stall_timeout_s": 0.5, "routing": ROUTING})
array = np.ones(4096, np.float32)
coarse.push_pull(array, "shared", coarse.Sum)
coarse.barrier()
if coarse.rank() == 0:
    os.kill(int(pids[3]), signal.SIGSTOP)
handle = coarse.push_pull_async(array, "shared", coarse.Sum)
try:
    handle.wait()
except coarse.StallError as error:
    print(error, flush=True)
workers.Barrier()
os.kill(int(pids[3]), signal.SIGCONT)
assert (handle.wait(timeout=20.0) == 2).all()
