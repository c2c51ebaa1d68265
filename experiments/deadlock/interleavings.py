"""All interleavings of a small job, run on the real proxies (COARSE III-F).

[Note: what is enumerated] All pushes are on their way from the beginning and reach the proxies in
every order: that covers every order in which any client may push, and every speed. The proxies' own
events - the ends of reduces, and chunks on their way - come either at once, before the next push, or
in every order among themselves and the pushes. Replays with equal states are continued once and
counted as often as they occur.
"""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

from coarse.strategy.routing import RoutingTable
from experiments.deadlock.dry_run import Replay, descriptor_of, table_for


@dataclass(frozen=True)
class Exploration:
    """What came of running every interleaving; equal states are run on from once only."""

    num_states: int
    num_interleavings: int
    num_stuck: int
    """Interleavings at whose end a client still waits."""


def explore(start: Replay, *, internal: bool) -> Exploration:
    """Run every interleaving: see [Note: what is enumerated]; `internal` is the second kind."""
    known: dict[Hashable, tuple[int, int]] = {}

    def paths_from(replay: Replay) -> tuple[int, int]:
        name = replay.fingerprint()
        if name not in known:
            choices = replay.pushes | replay.internal
            ends = [(1, int(bool(replay.awaited)))] if not choices else []
            for choice in choices:
                later = replay.after(choice)
                ends.append(paths_from(later if internal else later.settled()))
            known[name] = sum(all_ for all_, _ in ends), sum(stuck for _, stuck in ends)
        return known[name]

    num_interleavings, num_stuck = paths_from(start)
    return Exploration(len(known), num_interleavings, num_stuck)


def every_routing(num_clients: int, num_tensors: int) -> list[tuple[RoutingTable, ...]]:
    """All ways in which routing tables can send tensors of different sizes to two proxies.

    Of those that differ only in the numbers of clients or proxies there is one.
    """
    single = [table_for(0, proxy, proxy) for proxy in (0, 1)]
    split = [
        table_for(descriptor_of(tensor).nbytes, small, 1 - small)
        for tensor in range(num_tensors - 1)
        for small in (0, 1)
    ]
    found: dict[Hashable, tuple[RoutingTable, ...]] = {}
    for tables in itertools.combinations_with_replacement(single + split, num_clients):
        swapped = sorted(map(_swapped, tables), key=repr)
        if tuple(swapped) not in found:
            found[tuple(sorted(tables, key=repr))] = tables
    return list(found.values())


def _swapped(table: RoutingTable) -> RoutingTable:
    return table_for(table.threshold_bytes, 1 - table.latency_proxy, 1 - table.bandwidth_proxy)
