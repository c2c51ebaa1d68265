"""Worker 1 ends amid training in which the workers sum gradients, in the way that the first argument names.

The second argument says how they come to: by the mode "allreduce", by a forced split of the mode "coarse", or while the
two ways are "measured". Every rank writes its process id into the folder of the third, and worker 0 the error it gets.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

import coarse
from tests.mpi.torch.forced_split import SPLITS, force_split
from tests.support.claims import report_error

how, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
rank = MPI.COMM_WORLD.Get_rank()
(folder / f"pid{rank}").write_text(str(os.getpid()))


def end(*_: object) -> None:
    """What worker 1 comes to."""
    (folder / "ended").write_text(str(time.perf_counter()))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ArithmeticError("the worker is broken")


def train() -> None:
    """Until worker 1 ends, on workers alone: memory devices import no torch."""
    import coarse.torch as ct
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from tests.mpi.torch.training import Mlp, batch, loss_of, sgd

    if way in SPLITS:
        force_split(way)
    if way == "measured" and ct.rank() == 1:
        AllreduceStream.submit = end
    model = Mlp()
    optimizer = ct.DistributedOptimizer(sgd(list(model.parameters())), model.named_parameters())
    for step in range(100):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, ct.rank()))
        if ct.rank() == 1 and step == 3 and way != "measured":
            end()
        loss.backward()
        optimizer.step()


coarse.init({"mode": "allreduce" if way == "allreduce" else "coarse", "bucket_bytes": 2000})
try:
    train()
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "ended").read_text())
    report_error(folder, rank, waited_s, error)
