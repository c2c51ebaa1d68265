from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.plan import (
    Placement,
    RoutingTable,
    SyncPlan,
    count_shards,
    plan_key,
    proxy_for,
)

NODES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def table(latency_proxy=0, bandwidth_proxy=0, threshold_bytes=100, partition_bytes=64):
    return RoutingTable(
        threshold_bytes=threshold_bytes,
        latency_proxy=latency_proxy,
        bandwidth_proxy=bandwidth_proxy,
        partition_bytes=partition_bytes,
    )


def placement(clients_per_node, devices_per_node, collective="in_place", num_sync_groups=2):
    device_nodes = tuple(n for n, count in enumerate(devices_per_node) for _ in range(count))
    client_nodes = tuple(n for n, count in enumerate(clients_per_node) for _ in range(count))
    return Placement(
        client_nodes=client_nodes,
        device_nodes=device_nodes,
        local_proxies=tuple(device_nodes.index(node) for node in client_nodes),
        ranks=tuple(range(len(client_nodes) + len(device_nodes))),
        collective=collective,
        num_sync_groups=num_sync_groups,
    )


@st.composite
def plans(draw):
    """A plan, with where it is and the partition sizes that it must keep to."""
    clients = draw(NODES)
    devices = draw(st.lists(st.integers(1, 3), min_size=len(clients), max_size=len(clients)))
    place = placement(clients, devices, draw(st.sampled_from(("in_place", "central", "ring"))))
    tables = [
        table(
            draw(st.sampled_from(place.devices_on(node))),
            draw(st.sampled_from(place.devices_on(node))),
            partition_bytes=draw(st.integers(8, 200)),
        )
        for node in place.client_nodes
    ]
    num_elements = draw(st.integers(0, 2000))
    key = draw(st.integers(0, 2**64 - 1))
    return plan_key(key, num_elements, 4, tables, place), place, tables


def test_a_tensor_above_the_threshold_goes_to_the_bandwidth_proxy():
    routes = table(latency_proxy=1, bandwidth_proxy=2, threshold_bytes=100)
    assert [proxy_for(nbytes, routes) for nbytes in (0, 100, 101)] == [1, 1, 2]


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_shards_are_as_many_as_fit_without_falling_below_the_partition_size(
    nbytes, partition_bytes
):
    num_shards = count_shards(nbytes, partition_bytes)
    assert num_shards == 1 or nbytes / num_shards >= partition_bytes
    assert nbytes / (num_shards + 1) < partition_bytes


@given(st.integers(1, 50), st.integers(0, 1000))
def test_shards_cover_a_tensor_and_differ_by_at_most_one_element(num_shards, num_elements):
    plan = SyncPlan(num_shards, num_elements, (), (), 1)
    bounds = [plan.bounds(shard, shard + 1) for shard in range(num_shards)]
    sizes = [end - begin for begin, end in bounds]
    assert [begin for begin, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == num_elements
    assert max(sizes) - min(sizes) <= 1


@given(plans())
def test_blocks_cover_all_shards_in_order(made):
    plan, _, _ = made
    blocks = plan.members_by_block
    assert [first for first, _, _ in blocks] == [0, *(last for _, last, _ in blocks[:-1])]
    assert blocks[-1][1] == plan.num_shards
    assert all(first < last for first, last, _ in blocks)


@given(plans())
def test_every_client_contributes_each_shard_to_exactly_one_member_on_its_node(made):
    plan, place, _ = made
    for shard in range(plan.num_shards):
        members = plan.members(shard)
        assert len(set(members)) == len(members)
        served = [c for device in members for c in plan.contributors_by_device[device]]
        assert sorted(served) == list(range(place.num_clients))
        for device in members:
            nodes = {place.client_nodes[c] for c in plan.contributors_by_device[device]}
            assert nodes <= {place.device_nodes[device]}


@given(plans())
def test_a_client_announces_each_shard_once_to_the_device_that_takes_it(made):
    plan, place, _ = made
    for client in range(place.num_clients):
        announced = [
            (shard, device)
            for device, first, last in plan.targets(client)
            for shard in range(first, last)
        ]
        assert sorted(shard for shard, _ in announced) == list(range(plan.num_shards))
        assert all(device in plan.members(shard) for shard, device in announced)


@given(plans())
def test_boundaries_follow_the_largest_partition_size_of_all_clients(made):
    plan, _, tables = made
    largest = max(each.partition_bytes for each in tables)
    assert plan.num_shards == count_shards(4 * plan.num_elements, largest)


def test_on_one_node_in_place_every_shard_is_reduced_by_one_device_and_each_has_its_share():
    plan = plan_key(7, 1000, 4, [table(partition_bytes=100)] * 2, placement([2], [4]))
    assert plan.num_shards == 40
    counts = dict.fromkeys(range(4), 0)
    for first, last, members in plan.members_by_block:
        assert len(members) == 1
        counts[members[0]] += last - first
    assert set(counts.values()) == {10}


@given(st.integers(0, 2**64 - 1), st.integers(0, 2000), st.integers(1, 4), st.integers(1, 4))
def test_in_the_middle_one_device_reduces_all_shards_of_all_keys(key, num_elements, num_clients, num_devices):
    place = placement([num_clients], [num_devices], "central")
    plan = plan_key(key, num_elements, 4, [table()] * num_clients, place)
    assert {plan.members(shard) for shard in range(plan.num_shards)} == {(0,)}
    assert plan.contributors_by_device == (tuple(range(num_clients)), *[()] * (num_devices - 1))


def test_small_keys_rotate_over_the_devices_of_a_node():
    place = placement([2], [4])
    owners = {plan_key(key, 1, 4, [table()] * 2, place).members(0) for key in range(4)}
    assert owners == {(0,), (1,), (2,), (3,)}


def test_a_ring_has_all_devices_also_those_without_a_contributor():
    tables = [table(latency_proxy=1, bandwidth_proxy=1)] * 3
    plan = plan_key(0, 1000, 4, tables, placement([3], [3], "ring"))
    assert plan.members(0) == (0, 1, 2)
    assert plan.contributors_by_device == ((), (0, 1, 2), ())


@pytest.mark.parametrize("num_sync_groups", [2, 3, 4])
def test_adjacent_sync_groups_run_in_opposite_directions(num_sync_groups):
    place = placement([1], [2], "ring", num_sync_groups)
    plan = plan_key(0, 1000, 4, [table(partition_bytes=100)], place)
    directions = [plan.direction(group) for group in range(num_sync_groups)]
    assert all(one == -other for one, other in pairwise(directions))


def test_endpoints_are_named_for_people():
    place = placement([2], [1])
    assert place.describe(1) == "worker 1 (MPI rank 1)"
    assert place.describe(2) == "memory device 0 (MPI rank 2)"
