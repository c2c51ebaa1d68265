"""All-reduces by the workers' own ring among four ranks, among three of them and by one alone: real messages."""

import time

import numpy as np
from mpi4py import MPI

from coarse.collectives.worker_ring import WorkerRing
from tests.support.claims import takes_all

SIZES = (0, 1, 2, 5, 1001, 3_000_000 if takes_all() else 300_007)


def reduced(comm: MPI.Comm, array: np.ndarray) -> np.ndarray:
    for awaited in WorkerRing(comm).reduce(array):
        while not awaited.is_over():
            assert all(0 <= rank < comm.Get_size() for rank in awaited.missing())
            time.sleep(0.0001)
    return array


def main() -> None:
    world = MPI.COMM_WORLD
    for num_members in (4, 3, 1):
        comm = world.Split(0 if world.Get_rank() < num_members else MPI.UNDEFINED, world.Get_rank())
        if comm == MPI.COMM_NULL:
            continue
        for size in SIZES:
            for dtype in (np.float32, np.float64):
                every = [np.random.default_rng(rank).standard_normal(size).astype(dtype) for rank in range(num_members)]
                found = reduced(comm, every[comm.Get_rank()].copy())
                np.testing.assert_allclose(found, np.sum(every, 0, dtype=np.float64), rtol=1e-5, atol=1e-5)
                same = found.copy()
                comm.Bcast([same, MPI.BYTE], root=0)
                assert same.tobytes() == found.tobytes(), "another sum than rank 0"
                again = reduced(comm, every[comm.Get_rank()].copy())
                assert again.tobytes() == found.tobytes(), "another sum than before"
        comm.Free()


if __name__ == "__main__":
    main()
