# Pure: no MPI, threads, clock or environment.
"""Per-client queues of pushed shards (COARSE III-F).

A shard is ready once every expected client has pushed it, in any order of pushes: nothing ever waits for the head of a
queue, so the deadlock of COARSE figure 10 cannot occur.
"""

from collections.abc import Collection
from typing import NamedTuple

from coarse.protocol.plan import mask_of, runs_of


class ReadyRun(NamedTuple):
    """Shards [first, last) that may be synchronised now."""

    first: int
    last: int
    present: tuple[int, ...]
    """Clients whose contribution counts; the others of `recipients` pushed nothing but want the result."""
    recipients: tuple[int, ...]


def merged_results(
    finished: list[tuple[int, int, ReadyRun]],
) -> list[tuple[int, int, tuple[int, ...], bool]]:
    """Return finished shards with neighbours of equal recipients and presence merged.

    Each is (first, past the last, recipients, whether any client contributed).
    """
    merged: list[tuple[int, int, tuple[int, ...], bool]] = []
    for first, last, run in sorted(finished) if len(finished) > 1 else finished:
        present = bool(run.present)
        if merged and merged[-1][1] == first and merged[-1][2:] == (run.recipients, present):
            merged[-1] = (merged[-1][0], last, run.recipients, present)
        else:
            merged.append((first, last, run.recipients, present))
    return merged


class ShardQueues:
    """Queues of one key at one proxy: for each client a bit set of the shards that it has pushed."""

    def __init__(self, contributors: Collection[int]) -> None:
        self._pushed = dict.fromkeys(contributors, 0)
        self._absent = dict.fromkeys(contributors, 0)
        self._any_absent = 0
        self._clients = tuple(contributors)

    def on_push(self, client: int, first: int, last: int, *, present: bool) -> bool:
        """Note an arrival.

        Return False if a shard was pushed again before it was synchronised.
        """
        mask = mask_of(first, last)
        if self._pushed[client] & mask:
            return False
        self._pushed[client] |= mask
        if not present:
            self._absent[client] |= mask
            self._any_absent |= mask
        else:
            self._absent[client] &= ~mask
        return True

    @property
    def is_empty(self) -> bool:
        """True if no pushed shard waits for others."""
        return not any(self._pushed.values())

    def lacks(self, client: int, begun: Collection[int]) -> bool:
        """Return whether a shard that another client has pushed, or that is `begun`, lacks this client."""
        wanted = 0
        for shard in begun:
            wanted |= mask_of(shard, shard + 1)
        for mask in self._pushed.values():
            wanted |= mask
        return bool(wanted & ~self._pushed[client])

    def missing(self, excused: Collection[int]) -> tuple[int, ...]:
        """Return the clients that keep a pushed shard waiting, or all of them if none has pushed.

        The excused are left out.
        """
        wanted = 0
        for mask in self._pushed.values():
            wanted |= mask
        return tuple(
            client
            for client, mask in self._pushed.items()
            if client not in excused and (not wanted or wanted & ~mask)
        )

    def take_ready(self, excused: Collection[int]) -> list[ReadyRun]:
        """Remove and return all shards that every client, except the excused, has pushed."""
        active = self._clients
        if excused:
            active = tuple(client for client in active if client not in excused)
        if not active:
            return []
        ready = self._pushed[active[0]]
        for client in active[1:]:
            ready &= self._pushed[client]
        if not ready:
            return []
        runs = []
        for part, present in self._by_presence(ready, active):
            runs += [ReadyRun(first, last, present, active) for first, last in runs_of(part)]
        for client in active:
            self._pushed[client] &= ~ready
        self._any_absent &= ~ready
        return runs

    def _by_presence(
        self, ready: int, active: tuple[int, ...]
    ) -> list[tuple[int, tuple[int, ...]]]:
        if not self._any_absent & ready:
            return [(ready, active)]
        parts: list[tuple[int, tuple[int, ...]]] = [(ready, ())]
        for client in active:
            absent = self._absent[client]
            parts = [
                piece
                for mask, present in parts
                for piece in ((mask & ~absent, (*present, client)), (mask & absent, present))
                if piece[0]
            ]
        return parts
