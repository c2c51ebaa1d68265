"""What every worker must end with alike: the test's accuracy, the losses and the weights."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import coarse
from coarse.errors import CoarseError, MismatchError

NAME = "keras_digits.results"


class UnsynchronisedError(CoarseError, RuntimeError):
    """Workers that trained without ever pushing a gradient."""


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


def num_pushes() -> int:
    """How often this worker has contributed to a sum, of gradients and of all else."""
    return int(sum(counts["pushes"] for counts in coarse.statistics()["keys"].values()))


def check_pushes(pushes: int, num_steps: int, rank: int) -> None:
    """Refuse a training that pushed less than once a step: its workers trained apart."""
    if pushes < num_steps:
        raise UnsynchronisedError(
            f"rank {rank}: at least one push for each of {num_steps} steps was wanted, {pushes} came; the model was "
            "made outside of strategy.scope(), or another strategy was active"
        )
