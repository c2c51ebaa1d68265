"""torch.distributed's all_reduce on Gloo, bucketed as DistributedDataParallel does."""

from __future__ import annotations

import os

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from benchmarks.workloads import Workload


def open_gloo(workers: MPI.Intracomm) -> None:
    """Make torch's default process group of the workers, over the loopback interface."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    port = np.zeros(1, dtype=np.int64)
    store = None
    if workers.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, workers.size, is_master=True, wait_for_workers=False)
        port[0] = store.port
    workers.Bcast(port, root=0)
    if store is None:
        store = dist.TCPStore("127.0.0.1", int(port[0]), workers.size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=workers.rank, world_size=workers.size)


class Gloo:
    """All buckets in flight at once, as in DDP with gradient_as_bucket_view=True.

    That is DDP's kinder setting: gradients lie in the buckets, so that nothing is copied into or out of them.
    """

    name = "Gloo"
    sums = True

    def __init__(self) -> None:
        self._buckets: list[torch.Tensor] = []
        self._is_grouped = False

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """Buckets are views of the worker's own memory."""
        self._buckets = [torch.from_numpy(host[bucket]) for bucket in workload.buckets]
        self._is_grouped = workload.is_grouped
        return workload.views(host)

    def run(self) -> None:
        """Start every bucket, then wait for each; a group is one call of the process group."""
        if self._is_grouped:
            dist.group.WORLD.allreduce_coalesced(self._buckets).wait()  # type: ignore[union-attr]
            return
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets]:
            work.wait()

    def close(self) -> None:
        """Drop the views."""
        self._buckets = []
