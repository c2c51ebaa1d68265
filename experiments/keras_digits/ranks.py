"""What every worker must end with alike: the test's accuracy, the losses and the weights."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import coarse
from coarse.errors import CoarseError, MismatchError

NAME = "keras_digits.results"


class UnsynchronisedError(CoarseError, RuntimeError):
    """Workers that trained without pushing the gradients of every step."""


def place() -> tuple[int, int]:
    """This worker's rank and the number of workers; (0, 1) where coarse was not started."""
    return (coarse.rank(), coarse.size()) if coarse.is_initialized() else (0, 1)


def digest(weights: Sequence[NDArray[np.generic]]) -> float:
    """A number that tells weights apart by their bytes, exact as a float64."""
    checksum = 0
    for weight in weights:
        checksum = zlib.crc32(np.ascontiguousarray(weight).tobytes(), checksum)
    return float(checksum)


def check_alike(found: Mapping[str, float]) -> None:
    """Compare what this worker has with what all others have; MismatchError, on all of them, where it differs.

    Every worker calls it with the same names.
    """
    rank, num_workers = place()
    mine = np.zeros((num_workers, len(found)))
    mine[rank] = list(found.values())
    rows = coarse.push_pull(mine, NAME, op=coarse.Sum) if num_workers > 1 else mine
    check_rows(rows, tuple(found), rank)


def check_rows(rows: NDArray[np.float64], names: Sequence[str], rank: int) -> None:
    """Refuse (worker, name) values that differ between workers; a value that is no number equals nothing."""
    wrong = [column for column in range(len(names)) if not (rows[:, column] == rows[0, column]).all()]
    if wrong:
        texts = [f"{names[column]} ({', '.join(map(repr, rows[:, column].tolist()))})" for column in wrong]
        raise MismatchError(
            f"rank {rank}: all workers should end alike, but differ, worker 0 first, in {', '.join(texts)}; gradients "
            "or metrics were not synchronised: don't use this model, look for what only some workers did"
        )


@dataclass(frozen=True)
class Pushed:
    """What this worker has contributed to sums: of gradients, and of little else."""

    pushes: int
    nbytes: int


def pushed() -> Pushed:
    """As coarse has counted it so far."""
    keys = coarse.statistics()["keys"].values()
    return Pushed(int(sum(counts["pushes"] for counts in keys)), int(sum(counts["bytes"] for counts in keys)))


def check_pushed(found: Pushed, num_steps: int, gradient_bytes: int, rank: int) -> None:
    """Refuse a training that pushed less than the gradients of each step: its workers trained apart."""
    if found.pushes < num_steps or found.nbytes < num_steps * gradient_bytes:
        raise UnsynchronisedError(
            f"rank {rank}: {num_steps} steps push {num_steps * gradient_bytes:,} bytes of gradients or more, but "
            f"{found.nbytes:,} bytes in {found.pushes} pushes came; make and compile the model within strategy.scope()"
        )
