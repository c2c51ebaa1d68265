"""COARSE figure 10: first come first served deadlocks, queues never do. Takes a minute.

    python -m experiments.coarse_deadlock

Three clients push three tensors to two proxies, in every order, under every routing that routing
tables can express; the proxies are those of live training. Under one routing the proxies' own events
come in every order too. Kind of the results: simulated.
"""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from coarse.strategy.routing import RoutingTable
from experiments.deadlock.dry_run import Replay, stuck_proxies, table_for
from experiments.deadlock.interleavings import every_routing, explore

NUM_CLIENTS, NUM_TENSORS, NUM_PROXIES = 3, 3, 2
FIGURE_10 = {0: ["tensor 1", "tensor 2"], 1: ["tensor 2", "tensor 1"]}
SHARED_PROXY = tuple(table_for(0, proxy, proxy) for proxy in (0, 0, 1))
"""Clients 0 and 1 push to proxy 0, client 2 to proxy 1."""


def figure_rows() -> Iterator[dict[str, Any]]:
    """Two clients that push two tensors in opposite orders."""
    for rule, fcfs in (("first come first served", True), ("queues", False)):
        stuck = stuck_proxies(FIGURE_10, fcfs=fcfs)
        yield row("figure 10", rule, 1, int(bool(stuck)))


def routing_rows() -> Iterator[dict[str, Any]]:
    """All orders of pushes, summed over all routings."""
    routings = every_routing(NUM_CLIENTS, NUM_TENSORS)
    for rule, fcfs in (("first come first served", True), ("queues", False)):
        found = [explored(tables, fcfs=fcfs, internal=False) for tables in routings]
        scenario = f"every order of pushes, {len(routings)} routings"
        yield row(scenario, rule, sum(all_ for all_, _ in found), sum(stuck for _, stuck in found))


def internal_rows() -> Iterator[dict[str, Any]]:
    """All orders of pushes, reductions and chunks."""
    scenario = "every order of pushes, reductions and chunks, 1 routing"
    yield row(scenario, "queues", *explored(SHARED_PROXY, fcfs=False, internal=True))


def explored(tables: tuple[RoutingTable, ...], *, fcfs: bool, internal: bool) -> tuple[int, int]:
    """Interleavings, and those that end stuck."""
    start = Replay(tables, NUM_PROXIES, NUM_TENSORS, fcfs=fcfs)
    found = explore(start, internal=internal)
    return found.num_interleavings, found.num_stuck


def row(scenario: str, rule: str, num_interleavings: int, num_stuck: int) -> dict[str, Any]:
    """One line of the result."""
    return {
        "scenario": scenario,
        "rule": rule,
        "interleavings": num_interleavings,
        "stuck": num_stuck,
        "kind": "simulated",
    }


def main() -> None:
    """Print all rows."""
    table = Table(title="Deadlocks of two proxies (COARSE figure 10)", title_justify="left")
    for name in row("", "", 0, 0):
        table.add_column(name, overflow="fold")
    for rows in (figure_rows(), routing_rows(), internal_rows()):
        for one in rows:
            table.add_row(*(str(value) for value in one.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
