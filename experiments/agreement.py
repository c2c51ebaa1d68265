"""What every worker of a Keras experiment must have alike, and what each must have pushed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coarse
from coarse.errors import CoarseError, MismatchError

NAME = "experiments.agreement"


class UnsynchronisedError(CoarseError, RuntimeError):
    """Workers that trained without pushing the gradients of every step."""


class DivergedError(CoarseError, ArithmeticError):
    """A training whose loss became infinite or no number."""


def check_finite(losses: Iterable[float], rank: int) -> None:
    """Refuse a training that diverged."""
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise DivergedError(
                f"rank {rank}: every loss should be a finite number, but number {number + 1} is {loss}; the training "
                "diverged, so lower --learning-rate"
            )


def place() -> tuple[int, int]:
    """This worker's rank and the number of workers; (0, 1) where coarse was not started."""
    return (coarse.rank(), coarse.size()) if coarse.is_initialized() else (0, 1)


def digest(weights: Sequence[NDArray[np.generic]]) -> float:
    """A number that tells weights apart by their bytes, exact as a float64."""
    checksum = 0
    for weight in weights:
        checksum = zlib.crc32(np.ascontiguousarray(weight).tobytes(), checksum)
    return float(checksum)


def check_alike(found: Mapping[str, float], remedy: str) -> None:
    """Compare what this worker has with what all others have; MismatchError, on all of them, where it differs.

    Every worker calls it with the same names; `remedy` says what to look for.
    """
    rank, num_workers = place()
    mine = np.zeros((num_workers, len(found)))
    mine[rank] = list(found.values())
    rows = coarse.push_pull(mine, f"{NAME}.{len(found)}", op=coarse.Sum) if num_workers > 1 else mine
    check_rows(rows, tuple(found), rank, remedy)


def check_rows(rows: NDArray[np.float64], names: Sequence[str], rank: int, remedy: str) -> None:
    """Refuse (worker, name) values that differ between workers; a value that is no number equals nothing."""
    wrong = [column for column in range(len(names)) if not (rows[:, column] == rows[0, column]).all()]
    if wrong:
        texts = [f"{names[column]} ({', '.join(map(repr, rows[:, column].tolist()))})" for column in wrong]
        raise MismatchError(
            f"rank {rank}: all workers should be alike, but differ, worker 0 first, in {', '.join(texts)}; don't use "
            f"the model, but look for what {remedy}"
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


def gradient_bytes(variables: Iterable[Any]) -> int:
    """Bytes of the gradients of a Keras model's variables, of one step."""
    return sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)


def check_pushed(found: Pushed, num_steps: int, gradient_bytes: int, rank: int) -> None:
    """Refuse a training that pushed less than the gradients of each step: its workers trained apart."""
    if found.pushes < num_steps or found.nbytes < num_steps * gradient_bytes:
        raise UnsynchronisedError(
            f"rank {rank}: {num_steps} steps push {num_steps * gradient_bytes:,} bytes of gradients or more, but "
            f"{found.nbytes:,} bytes in {found.pushes} pushes came; make and compile the model within strategy.scope()"
        )
