"""Worker 1 of mode "allreduce" ends amid training, in the way that the first argument names.

Every rank writes its process id into the folder of the second argument; worker 0 writes the error it gets.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

import coarse
import coarse.torch as ct
from tests.mpi.claims import report_error
from tests.mpi.programs.torch_training import Mlp, batch, loss_of, sgd

how, folder = sys.argv[1], Path(sys.argv[2])
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))
ct.init({"mode": "allreduce", "bucket_bytes": 2000})
model = Mlp()
optimizer = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
try:
    for step in range(100):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, ct.rank()))
        if ct.rank() == 1 and step == 3:
            (folder / "ended").write_text(str(time.perf_counter()))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("the worker is broken")
        loss.backward()
        optimizer.step()
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "ended").read_text())
    report_error(folder, rank, waited_s, error)
