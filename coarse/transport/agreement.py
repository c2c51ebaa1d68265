"""Agreements of all ranks at start-up, by collectives of fixed size: errors, configuration, names.

Every check's outcome is shared before anybody goes on, so that all ranks raise together.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from coarse.errors import ConfigError
from coarse.protocol.agreement import settled
from coarse.protocol.config import Config, load_config
from coarse.protocol.plan import Cluster
from coarse.protocol.statement import Statement, settle
from coarse.strategy.decisions import Decisions, text_of

Made = TypeVar("Made")


def agree(world: MPI.Comm, error: Exception | None) -> None:
    """Raise on all ranks what any rank found wrong, in the words of the lowest."""

    def check() -> None:
        if error is not None:
            raise error

    made_by_all(world, check)


def made_by_all(world: MPI.Comm, make: Callable[[], Made]) -> Made:
    """Make something on every rank, and return this rank's; raise an error of any rank on all of them."""
    return settled(make, partial(_gather_texts, world), range(world.Get_size()), world.Get_rank())


def agree_on_config(
    world: MPI.Comm, given: Config | Mapping[str, object] | str | Path | None
) -> Config:
    """Return the configuration that `settle` finds for all ranks; ConfigError on all where they differ."""
    config = made_by_all(world, lambda: load_config(given, os.environ))
    texts = _gather_texts(world, Statement.of(config, given, os.environ).to_json())
    return settle([Statement.from_json(text) for text in texts], world.Get_rank())


def agree_on_digest(world: MPI.Comm, text: str, what: str) -> None:
    """Refuse, on all ranks, something that must be the same everywhere and is not."""
    digests = _gather_texts(world, hashlib.sha256(text.encode()).hexdigest())
    differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if differing:
        raise ConfigError(
            f"ranks {differing} have another {what} than rank 0; give all ranks the same files"
        )


def agree_on_decisions(world: MPI.Comm, path: str | None, cluster: Cluster) -> Decisions:
    """Return the decisions that a file fixes, equal on all ranks; ConfigError on all where they have two."""
    text = made_by_all(world, lambda: text_of(path))
    agree_on_digest(world, text, "file of decisions")
    return made_by_all(world, lambda: Decisions(None if path is None else Path(path), cluster, text))


def gather_hosts(world: MPI.Comm) -> list[str]:
    """Return every rank's host name."""
    return _gather_texts(world, MPI.Get_processor_name())


def broadcast_run_name(world: MPI.Comm) -> str:
    """Return a name that no other run on this machine has."""
    name = np.frombuffer(secrets.token_bytes(8), np.uint8).copy()
    world.Bcast(name, root=0)
    return name.tobytes().hex()


def _gather_texts(world: MPI.Comm, text: str) -> list[str]:
    """Return every rank's text."""
    mine = np.frombuffer(text.encode(), np.uint8)
    lengths = np.empty(world.Get_size(), np.int64)
    world.Allgather(np.array([mine.size], np.int64), lengths)
    joined = np.empty(int(lengths.sum()), np.uint8)
    starts = np.cumsum(lengths) - lengths
    world.Allgatherv(mine, [joined, lengths, starts, MPI.BYTE])
    return [joined[start : start + length].tobytes().decode() for start, length in zip(starts, lengths, strict=True)]
