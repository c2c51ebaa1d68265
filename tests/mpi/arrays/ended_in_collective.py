"""A worker ends amid collectives of all workers; the survivors write the error they get.

Arguments: the folder, the worker that ends, and the collective.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import coarse
from coarse.collectives.shape import Collective
from coarse.parallel.groups import shared_by_groups
from coarse.protocol.dtypes import DType, Op
from coarse.session import current
from tests.support.claims import report_error

folder, victim, collective = Path(sys.argv[1]), int(sys.argv[2]), Collective(sys.argv[3])
coarse.init()
from coarse.collectives.group import WorkerGroup  # noqa: E402  it starts MPI, which only init() may

(folder / f"pid{current().world_rank}").write_text(str(os.getpid()))
group = WorkerGroup(shared_by_groups(current()), tuple(range(coarse.size())), collective)
arrays = [np.ones(1 << 20, np.float32) for _ in range(4)]
try:
    for step in range(1000):
        pending = [group.all_reduce(array, DType.FLOAT32, Op.AVERAGE, what="gradient") for array in arrays]
        if coarse.rank() == victim and step == 3:
            (folder / "ended").write_text(str(time.perf_counter()))
            os.kill(os.getpid(), signal.SIGKILL)
        for known in pending:
            known.wait()
except coarse.CoarseError as error:
    report_error(folder, coarse.rank(), time.perf_counter() - float((folder / "ended").read_text()), error)
