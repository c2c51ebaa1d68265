"""Which links collectives take, and how many bytes leave each node."""

import pytest

from coarse.collectives.schedule import bytes_between_nodes
from coarse.collectives.shape import Collective, GroupShape
from coarse.errors import ConfigError
from coarse.hardware.presets import load_preset
from coarse.simulation.sharded.routes import Routes, crossing_nbytes
from tests.unit.simulation.sharded_jobs import cluster


def routes(num_nodes=2, gpus_per_node=4):
    machine = cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node)
    return Routes(machine=machine, num_nodes=num_nodes, gpus_per_node=gpus_per_node)


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_bytes_that_leave_nodes_are_those_of_the_live_collectives(num_nodes):
    ways, nbytes = routes(num_nodes), 1024 * num_nodes * 4
    shape = GroupShape(tuple(node for node in range(num_nodes) for _ in range(4)))
    for collective, phase in ((Collective.RING, ways.ring(nbytes)), (Collective.HIERARCHICAL, ways.rails(nbytes))):
        assert crossing_nbytes(phase) == num_nodes * bytes_between_nodes(collective, shape, nbytes)


def test_a_ring_leaves_each_node_once():
    phase = routes(4).ring(1600)
    assert sum(flow.crosses for flow in phase) == 4
    assert {(flow.nbytes, flow.num_turns) for flow in phase} == {(100, 15)}


def test_an_all_reduce_of_replicas_takes_both_passes():
    ways = routes(2)
    assert crossing_nbytes(ways.replicas(800, 4)) == 2 * crossing_nbytes(ways.rails(800)) == 1600


@pytest.mark.parametrize(("size", "groups"), [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)])
def test_groups_that_share_parameters_sum_among_themselves_and_then_among_replicas(size, groups):
    ways, nbytes = routes(4), 1600
    assert len(ways.groups(size)) == groups
    num_turns = {flow.num_turns for flow in ways.rings(nbytes, size)}
    assert num_turns == ({size - 1} if size > 1 else set())
    replicas = ways.replicas(nbytes, size)
    assert {flow.num_turns for flow in replicas} == ({2 * (groups - 1)} if groups > 1 else set())
    assert len(replicas) == (16 if groups > 1 else 0)
    assert {flow.nbytes for flow in replicas} == ({1600 // 16} if groups > 1 else set())
    span = size // 4
    if span > 1:
        rails = ways.rails(nbytes, span=span)
        assert crossing_nbytes(rails) == (4 // span) * (span - 1) * nbytes


def test_what_does_not_divide_is_padded_to_the_largest_part():
    assert {flow.nbytes for flow in routes(2).within(10)} == {3}


def test_host_copies_take_a_gpus_own_port_and_its_part():
    machine = cluster(gpus_per_node=4)
    stores = Routes(machine=machine, num_nodes=2, gpus_per_node=4).host_copies(40, to_host=True)
    names = [machine.links[link].name for flow in stores for link in flow.path]
    assert names == [f"node{node} gpu{gpu} up" for node in range(2) for gpu in range(4)]
    assert {flow.nbytes for flow in stores} == {10}


def test_pairs_with_a_bridge_use_it_within_a_node():
    machine = load_preset("fcdp-a40-rdma")
    hops = Routes(machine=machine, num_nodes=2, gpus_per_node=8).within(800)
    bridged = [flow for flow in hops if any("gpu0 - gpu1" in machine.links[link].name for link in flow.path)]
    assert len(bridged) == 2


def test_more_gpus_than_the_machine_has_are_refused():
    with pytest.raises(ConfigError, match="small, which has 2 nodes of 4"):
        Routes(machine=cluster(gpus_per_node=4), num_nodes=2, gpus_per_node=8)
