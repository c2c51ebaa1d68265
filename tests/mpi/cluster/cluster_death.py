"""The first worker of the second node ends itself or a device: `cluster_death.py FOLDER worker|device|nobody`.

Every worker that lives on writes the error that it gets; all write the network namespace that they were in.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from tests.support.claims import report_error

folder, victim = Path(sys.argv[1]), sys.argv[2]
coarse.init()
rank = MPI.COMM_WORLD.Get_rank()
coarse.push_pull(np.ones(5), "before")
is_second_node = coarse.rank() == coarse.size() // 2
(folder / f"namespace{rank}").write_text(os.readlink("/proc/self/ns/net"))


def device_on_this_node() -> int:
    """The process of a light device; in /proc are this node's alone."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        if (entry / "cmdline").read_text().split("\0")[1:3] == ["-m", "coarse.launch.device"]:
            return int(entry.name)
    raise AssertionError("no device runs on this node")


try:
    coarse.barrier()
    if is_second_node and victim != "nobody":
        (folder / "killed").write_text(str(time.perf_counter()))
        os.kill(os.getpid() if victim == "worker" else device_on_this_node(), signal.SIGKILL)
    while True:
        coarse.push_pull(np.ones(5), "after")
except coarse.CoarseError as error:
    waited_s = time.perf_counter() - float((folder / "killed").read_text())
    report_error(folder, rank, waited_s, error)
    raise
