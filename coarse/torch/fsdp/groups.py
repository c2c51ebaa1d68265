"""Groups of workers of this process for sharded units: one for the same ranks and collective."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch.distributed as dist

import coarse
from coarse.errors import ConfigError, MismatchError
from coarse.parallel.groups import shared_by_groups
from coarse.parallel.sharded.transfers import Phase
from coarse.protocol.agreement import first_lines_apart, settled
from coarse.session import current

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup
    from coarse.runtime import Runtime

_TEXT_BYTES = 1024
Found = TypeVar("Found")


class ShardGroups:
    """Groups of one runtime; all members ask for them in the same order."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._groups: dict[tuple[tuple[int, ...], str], WorkerGroup] = {}
        self._num_calls: Counter[tuple[int, ...]] = Counter()

    def next_call(self, ranks: tuple[int, ...]) -> str:
        """Return a name for the next call of `fully_shard` that these ranks make together."""
        self._num_calls[ranks] += 1
        whose = "" if len(ranks) == self.runtime.placement.num_clients else f" by ranks {list(ranks)}"
        return f"call {self._num_calls[ranks]} of fully_shard{whose}"

    def group_of(self, ranks: tuple[int, ...], collective: str) -> WorkerGroup:
        """Return the group of `ranks` among workers; the first call opens it."""
        from coarse.collectives.group import WorkerGroup
        from coarse.collectives.shape import Collective

        key = (ranks, collective)
        if key not in self._groups:
            self._groups[key] = WorkerGroup(shared_by_groups(self.runtime), ranks, Collective(collective))
        return self._groups[key]


_groups: ShardGroups | None = None


def shard_groups() -> ShardGroups:
    """Return the groups of the current runtime."""
    global _groups
    runtime = current()
    if _groups is None or _groups.runtime is not runtime:
        _groups = ShardGroups(runtime)
    return _groups


def bytes_between_nodes() -> dict[str, tuple[int, int]]:
    """Return the bytes that this worker sent to other nodes and received for sharded models, by purpose.

    Keys are "forward gather", "backward gather", "gradient reduce-scatter", and "agreements" for the rest: the changes
    of parameters, and the announcement of each transfer. Bytes by unit stand in
    `coarse.statistics()["between_nodes"]`.
    """
    phases = [str(phase) for phase in (Phase.FORWARD_GATHER, Phase.BACKWARD_GATHER, Phase.REDUCE_SCATTER)]
    found = {name: (0, 0) for name in (*phases, "agreements")}
    groups = current().groups
    for what, (sent, received) in groups.traffic.by_purpose().items() if groups is not None else ():
        name = next((phase for phase in phases if what.startswith(phase)), "agreements")
        found[name] = (found[name][0] + sent, found[name][1] + received)
    return found


def settle(group: WorkerGroup, check: Callable[[], Found]) -> Found:
    """Return the result of `check`; where it raises on any member, raise on all with the lowest's text."""
    return settled(check, lambda text: _gather_texts(group, text, "agreement on errors"), group.ranks, group.rank)


def require_same(group: WorkerGroup, statement: Sequence[str], what: str) -> None:
    """Raise MismatchError on all members, with the first line at fault, where their statements differ."""
    text = "\n".join(statement)
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = _gather_texts(group, f"{digest} {len(text.encode())}", f"agreement on {what}")
    differing = next((rank for rank, other in enumerate(found) if other != found[0]), None)
    if differing is None:
        return
    num_bytes = max(int(other.split(" ")[1]) for other in found)
    lines = [told.split("\n") for told in _gather_texts(group, text, f"what differs in {what}", num_bytes)]
    said = first_lines_apart(lines[0], lines[differing])
    raise MismatchError(
        f"{what} differs between workers: rank {group.ranks[0]} has {said[0]!r}, rank {group.ranks[differing]} has "
        f"{said[1]!r}; build and shard the same model on all workers, in the same order"
    )


def _gather_texts(group: WorkerGroup, text: str, what: str, num_bytes: int = _TEXT_BYTES) -> list[str]:
    """Return every member's text, cut to `num_bytes` bytes."""
    encoded = np.frombuffer(text.encode()[:num_bytes], np.uint8)
    own = np.zeros(num_bytes, np.uint8)
    own[: len(encoded)] = encoded
    texts = np.empty(group.size * num_bytes, np.uint8)
    group.all_gather(texts, own, what=what).wait()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts.reshape(group.size, -1)]


def require_same_ranks() -> None:
    """Raise ConfigError unless torch.distributed counts this process as coarse counts it."""
    theirs, ours = (dist.get_rank(), dist.get_world_size()), (coarse.rank(), coarse.size())
    if theirs != ours:
        raise ConfigError(
            f"torch.distributed counts this process as rank {theirs[0]} of {theirs[1]}, coarse as worker {ours[0]} of "
            f"{ours[1]}; let coarse.torch.fully_shard start torch.distributed, or pass it these numbers"
        )
