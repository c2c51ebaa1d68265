"""Ranks of a benchmark: workers first, then memory devices, all on one machine."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_RELEASE_TAG = 1
_NAP_S = 2e-3


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's view of a benchmark's processes."""

    num_workers: int
    num_devices: int
    rank: int
    workers: MPI.Intracomm | None
    """The workers' own communicator; None on a device."""
    process_ids: tuple[int, ...]
    """Of each rank."""

    @property
    def is_worker(self) -> bool:
        """True if this rank computes."""
        return self.workers is not None

    @property
    def device_process_ids(self) -> tuple[int, ...]:
        """Process ids of the memory devices."""
        return self.process_ids[self.num_workers :]

    @property
    def partition(self) -> str:
        """The partition table as coarse's configuration takes it."""
        return f"{self.num_workers}:{self.num_devices}"


def open_world(num_workers: int, num_devices: int) -> World:
    """Split mpirun's processes into workers and devices and learn everybody's process id."""
    from mpi4py import MPI

    everyone = _everyone()
    if everyone.size != num_workers + num_devices:
        raise ValueError(
            f"{num_workers} workers and {num_devices} devices need {num_workers + num_devices} processes, mpirun "
            f"started {everyone.size}; change -n, --workers or --devices"
        )
    is_worker = everyone.rank < num_workers
    workers = everyone.Split(0 if is_worker else MPI.UNDEFINED, everyone.rank)
    process_ids = np.empty(everyone.size, dtype=np.int64)
    everyone.Allgather(np.array([os.getpid()], dtype=np.int64), process_ids)
    return World(
        num_workers=num_workers,
        num_devices=num_devices,
        rank=everyone.rank,
        workers=MPI.Intracomm(workers) if is_worker else None,
        process_ids=tuple(process_ids.tolist()),
    )


def _everyone() -> MPI.Intracomm:
    """All ranks of mpirun; MPI starts here, so that command lines are read without it."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def on_workers(world: World, body: Callable[[], None], *, uses_coarse: bool) -> None:
    """Run `body` on the workers; meanwhile devices serve coarse, or only sleep where it takes no part."""
    if uses_coarse:
        import coarse

        coarse.init({"partition": world.partition})  # returns on workers alone
        body()
        coarse.shutdown()
    elif world.is_worker:
        body()
        _release_devices(world)
    else:
        _sleep_until_released()


def _sleep_until_released() -> None:
    everyone = _everyone()
    while not everyone.Iprobe(source=0, tag=_RELEASE_TAG):
        time.sleep(_NAP_S)
    everyone.Recv(np.empty(0, dtype=np.uint8), source=0, tag=_RELEASE_TAG)


def _release_devices(world: World) -> None:
    if world.rank != 0:
        return
    for device in range(world.num_workers, world.num_workers + world.num_devices):
        _everyone().Send(np.empty(0, dtype=np.uint8), dest=device, tag=_RELEASE_TAG)


@contextmanager
def abort_on_error() -> Iterator[None]:
    """End all ranks if one fails, so that none waits for it for ever."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        traceback.print_exc()
        sys.stderr.flush()
        _everyone().Abort(1)
