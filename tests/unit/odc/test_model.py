"""Every interleaving of small jobs under on-demand communication: no read of a wrong or torn version, no deadlock.

`python -m pytest -s` prints the numbers of states. The larger cases are those of `make test-model`.
"""

import os
from typing import Any

import pytest

from coarse.odc.client.protocol import OdcClient
from coarse.odc.device.served import ServedOdc
from coarse.odc.layout import EVERYTHING
from tests.support.model_check import Outcome, explore
from tests.support.odc_cluster import placement_of
from tests.unit.odc import world
from tests.unit.odc.world import World, declaration

NODES = {"one node": ((0, 0, 0), (0,)), "two": ((0, 0, 1), (0, 1)), "two devices": ((0, 0, 0), (0, 0))}
"""(Node of each worker, node of each device)."""
LARGE = pytest.mark.skipif(not os.environ.get("COARSE_TEST_MODEL"), reason="minutes; make test-model")


def outcome_of(nodes: tuple[Any, Any], microbatches: list[tuple[int, ...]], what: str, **options: Any) -> Outcome:
    classes = {name: options.pop(name) for name in ("client", "served") if name in options}
    job = World(placement_of(*nodes), declaration(len(nodes[0]), **options), microbatches, **classes)
    outcome = explore(job, lambda state: state.steps(), lambda state: state.is_end())
    print(f"{what}: {outcome.num_states:,} states, {outcome.num_steps:,} steps")
    return outcome


@pytest.mark.test_all
def test_three_workers_with_0_1_and_3_microbatches_over_two_minibatches():
    outcome = outcome_of(NODES["one node"], [(0, 3), (1, 0), (3, 1)], "three workers")
    assert outcome.fault is None, outcome.trace
    assert outcome.num_states > 20_000


@pytest.mark.parametrize("cache_bytes", [0, EVERYTHING], ids=["no cache", "cache"])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_two_nodes(cache_bytes, num_slots):
    nodes = ((0, 1), (0, 1))
    outcome = outcome_of(nodes, [(2, 0), (0, 1)], "two nodes", cache_bytes=cache_bytes, num_slots=num_slots)
    assert outcome.fault is None, outcome.trace


@LARGE
@pytest.mark.parametrize("nodes", ["two", "two devices"])
@pytest.mark.parametrize("cache_bytes", [0, EVERYTHING], ids=["no cache", "cache"])
def test_three_workers_on(nodes, cache_bytes):
    outcome = outcome_of(NODES[nodes], [(0,), (1,), (1,)], f"{nodes}, {cache_bytes}", cache_bytes=cache_bytes)
    assert outcome.fault is None, outcome.trace


# --- holes, which must be found


class Impatient(OdcClient):
    """Reads what was published for any minibatch."""

    def have_all_published(self, unit: int) -> bool:
        return all(units[unit] >= 0 for units in self.published.values())


class Forgetful(OdcClient):
    """Takes what its node had once for what is new."""

    def _has_copy(self, owner: int, unit: int) -> bool:
        return (owner, unit) in self._copied


class Uncounted(ServedOdc):
    """Ends a minibatch when all workers have, whatever pieces are still under way."""

    def _have_all(self, minibatch: Any, members: Any, units: Any) -> bool:
        return all(member in minibatch.ends for member in members)


HOLES = {
    "impatient": (Impatient, ServedOdc, ((0, 0), (0,)), [(1, 1), (0, 1)], 0),
    "forgetful": (Forgetful, ServedOdc, ((0, 1), (0, 1)), [(1, 1), (1, 1)], EVERYTHING),
    "uncounted": (OdcClient, Uncounted, ((0, 0), (0, 0)), [(1,), (1,)], 0),
}


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found(name, monkeypatch):
    client, served, nodes, microbatches, cache_bytes = HOLES[name]
    monkeypatch.setattr(world, "COPIED", (*world.COPIED, client, served))
    outcome = outcome_of(nodes, microbatches, name, client=client, served=served, cache_bytes=cache_bytes)
    assert outcome.fault is not None
