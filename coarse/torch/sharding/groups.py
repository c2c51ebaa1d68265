"""This process's groups of workers for sharded units: one for the same ranks and collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch.distributed as dist

import coarse
from coarse import errors
from coarse.errors import CoarseError, ConfigError, MismatchError
from coarse.session import current
from coarse.sharding.modes import Phase

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup
    from coarse.runtime import Runtime

_TEXT_BYTES = 1024
Found = TypeVar("Found")


class ShardGroups:
    """The groups of one runtime; all members ask for them in the same order."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._groups: dict[tuple[tuple[int, ...], str], WorkerGroup] = {}

    def group_of(self, ranks: tuple[int, ...], collective: str) -> WorkerGroup:
        """The group of `ranks` among workers; opened with the first call."""
        from coarse.collectives.group import WorkerGroup
        from coarse.collectives.shape import Collective

        key = (ranks, collective)
        if key not in self._groups:
            self._groups[key] = WorkerGroup(self.runtime, ranks, Collective(collective))
        return self._groups[key]


_groups: ShardGroups | None = None


def shard_groups() -> ShardGroups:
    """The groups of the current runtime."""
    global _groups
    runtime = current()
    if _groups is None or _groups.runtime is not runtime:
        _groups = ShardGroups(runtime)
    return _groups


def bytes_between_nodes() -> dict[str, tuple[int, int]]:
    """Bytes that this worker has sent to other nodes and received from them for sharded models, by what they were for.

    Keys are "forward gather", "backward gather", "gradient reduce-scatter", and "agreements" for the rest: what has
    changed, and what announces each transfer. By unit the same stands in `coarse.statistics()["between_nodes"]`.
    """
    phases = [str(phase) for phase in (Phase.FORWARD_GATHER, Phase.BACKWARD_GATHER, Phase.REDUCE_SCATTER)]
    found = {name: (0, 0) for name in (*phases, "agreements")}
    groups = current().groups
    for what, (sent, received) in groups.traffic.by_purpose().items() if groups is not None else ():
        name = next((phase for phase in phases if what.startswith(phase)), "agreements")
        found[name] = (found[name][0] + sent, found[name][1] + received)
    return found


def settle(group: WorkerGroup, check: Callable[[], Found]) -> Found:
    """What `check` returns; where it raises on any member, all raise alike, in the words of the lowest."""
    found, error = None, None
    try:
        found = check()
    except CoarseError as refused:
        error = refused
    said = "" if error is None else f"{type(error).__name__}\0{error}"
    for rank, text in enumerate(_gather_texts(group, said, "agreement on errors")):
        if not text:
            continue
        if error is not None and rank == group.rank:
            raise error
        kind, _, message = text.partition("\0")
        raised: type[CoarseError] = getattr(errors, kind, ConfigError)
        raise raised(f"rank {group.ranks[rank]} reports: {message}")
    assert found is not None
    return found


def require_same(group: WorkerGroup, statement: str, what: str) -> None:
    """Raise MismatchError on all members where they don't state the same."""
    digest = hashlib.sha256(statement.encode()).hexdigest()
    texts = _gather_texts(group, f"{digest} {statement}", f"agreement on {what}")
    for rank, text in enumerate(texts):
        if text.split(" ")[0] != texts[0].split(" ")[0]:
            raise MismatchError(
                f"{what} differs: rank {group.ranks[0]} has {texts[0].partition(' ')[2]!r}, rank {group.ranks[rank]} "
                f"{text.partition(' ')[2]!r}; shard the same model alike on all workers"
            )


def _gather_texts(group: WorkerGroup, text: str, what: str) -> list[str]:
    """Every member's text, cut to _TEXT_BYTES."""
    encoded = np.frombuffer(text.encode()[:_TEXT_BYTES], np.uint8)
    own = np.zeros(_TEXT_BYTES, np.uint8)
    own[: len(encoded)] = encoded
    texts = np.empty(group.size * _TEXT_BYTES, np.uint8)
    group.all_gather(texts, own, what=what).wait()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts.reshape(group.size, -1)]


def require_same_ranks() -> None:
    """ConfigError unless torch.distributed counts this process as coarse counts it."""
    theirs, ours = (dist.get_rank(), dist.get_world_size()), (coarse.rank(), coarse.size())
    if theirs != ours:
        raise ConfigError(
            f"torch.distributed counts this process as rank {theirs[0]} of {theirs[1]}, coarse as worker {ours[0]} of "
            f"{ours[1]}; let coarse.torch.fully_shard start torch.distributed, or pass it these numbers"
        )
