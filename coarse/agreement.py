"""What all ranks settle at start-up, by collectives of fixed size: errors, configuration, names.

Every check's outcome is shared before anybody goes on, so that all ranks raise together.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from coarse import errors
from coarse.config import Config, load_config
from coarse.errors import CoarseError, ConfigError

_TEXT_BYTES = 4096


def agree(world: MPI.Comm, error: Exception | None) -> None:
    """Raise on all ranks what any rank found wrong, in the words of the lowest."""
    said = "" if error is None else f"{type(error).__name__}\0{error}"
    for rank, text in enumerate(_gather_texts(world, said)):
        if not text:
            continue
        if error is not None and rank == world.Get_rank():
            raise error
        kind, message = text.split("\0", 1)
        found: type[CoarseError] = getattr(errors, kind, ConfigError)
        raise found(f"rank {rank} reports: {message}")


def agree_on_config(
    world: MPI.Comm, given: Config | Mapping[str, object] | str | Path | None
) -> Config:
    """The configuration of the ranks that state one; ranks that state none (light devices) take it."""
    config, error = Config(), None
    try:
        config = load_config(given, os.environ)
    except (CoarseError, OSError) as refused:
        error = refused
    agree(world, error)
    is_stated = given is not None or "COARSE_CONFIG" in os.environ
    texts = _gather_texts(world, json.dumps(config.to_mapping()) if is_stated else "")
    stated = [rank for rank, text in enumerate(texts) if text]
    if not stated:
        return config
    _require_one_config({rank: json.loads(texts[rank]) for rank in stated})
    agreed = Config.from_mapping(json.loads(texts[stated[0]]))
    return agreed if is_stated else replace(agreed, partition=agreed.partition or config.partition)


def _require_one_config(stated: Mapping[int, Mapping[str, object]]) -> None:
    """Refuse settings that differ between ranks, by name."""
    first = min(stated)
    for rank, config in stated.items():
        differing = [
            f"{key} is {value!r} on rank {rank} but {stated[first][key]!r} on rank {first}"
            for key, value in config.items()
            if value != stated[first][key]
        ]
        if differing:
            raise ConfigError(
                f"{'; '.join(differing)}: give all ranks the same config, COARSE_CONFIG and COARSE_MODE"
            )


def agree_on_digest(world: MPI.Comm, text: str, what: str) -> None:
    """Refuse, on all ranks, something that must be the same everywhere and is not."""
    digests = _gather_texts(world, hashlib.sha256(text.encode()).hexdigest())
    differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if differing:
        raise ConfigError(
            f"ranks {differing} have another {what} than rank 0; give all ranks the same files"
        )


def gather_hosts(world: MPI.Comm) -> list[str]:
    """Every rank's host name."""
    return _gather_texts(world, MPI.Get_processor_name())


def broadcast_run_name(world: MPI.Comm) -> str:
    """A name that no other run on this machine has."""
    name = np.frombuffer(secrets.token_bytes(8), np.uint8).copy()
    world.Bcast(name, root=0)
    return name.tobytes().hex()


def _gather_texts(world: MPI.Comm, text: str) -> list[str]:
    """Every rank's text, cut to _TEXT_BYTES."""
    mine = np.zeros(_TEXT_BYTES, np.uint8)
    encoded = text.encode()[:_TEXT_BYTES]
    mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    texts = np.empty((world.Get_size(), _TEXT_BYTES), np.uint8)
    world.Allgather(mine, texts)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
