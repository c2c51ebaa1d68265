from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.protocol.plan import Block, Placement, Plan, ShardPlan, Tensor, count_shards
from coarse.strategy.builtin import Coarse, Dense
from coarse.strategy.plans import on_each_node
from coarse.strategy.routing import RoutingTable
from coarse.strategy.strategy import Strategy

NODES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


class FirstOfNode(Strategy):
    """The first device of each node adds all of its workers; partitions of the first fact."""

    def plan(self, tensor, cluster, facts):
        firsts = lambda node: cluster.devices_on(node)[:1]  # noqa: E731
        cut_bytes = max(row[3] for row in facts)
        return on_each_node(tensor, cluster, cluster.local_devices, cut_bytes, adders=firsts)


RULES = {"in_place": Coarse(), "ring": Coarse(collective="ring"), "first": FirstOfNode(), "central": Dense()}


def table(latency_proxy=0, bandwidth_proxy=0, threshold_bytes=100, partition_bytes=64):
    return RoutingTable(
        threshold_bytes=threshold_bytes,
        latency_proxy=latency_proxy,
        bandwidth_proxy=bandwidth_proxy,
        partition_bytes=partition_bytes,
    )


def placement(clients_per_node, devices_per_node, rule="in_place", num_sync_groups=2):
    device_nodes = tuple(n for n, count in enumerate(devices_per_node) for _ in range(count))
    client_nodes = tuple(n for n, count in enumerate(clients_per_node) for _ in range(count))
    return Placement(
        client_nodes=client_nodes,
        device_nodes=device_nodes,
        local_proxies=tuple(device_nodes.index(node) for node in client_nodes),
        ranks=tuple(range(len(client_nodes) + len(device_nodes))),
        planner=RULES[rule],
        num_sync_groups=num_sync_groups,
    )


def plan_key(key, num_elements, itemsize, tables, place):
    return place.plan_of(Tensor(key, num_elements, itemsize), tuple(tables))


@st.composite
def plans(draw):
    """A plan, with where it is and the partition sizes that it must keep to."""
    clients = draw(NODES)
    devices = draw(st.lists(st.integers(1, 3), min_size=len(clients), max_size=len(clients)))
    place = placement(clients, devices, draw(st.sampled_from(("in_place", "first", "ring"))))
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


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_shards_are_as_many_as_fit_without_falling_below_the_partition_size(
    nbytes, partition_bytes
):
    num_shards = count_shards(nbytes, partition_bytes)
    assert num_shards == 1 or nbytes / num_shards >= partition_bytes
    assert nbytes / (num_shards + 1) < partition_bytes


@given(st.integers(1, 50), st.integers(0, 1000))
def test_shards_cover_a_tensor_and_differ_by_at_most_one_element(num_shards, num_elements):
    plan = ShardPlan(num_shards, num_elements, (), (), 1)
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


def test_a_plan_is_asked_for_once_for_a_tensor_and_again_by_other_facts():
    asked = []

    class Counting(Coarse):
        def plan(self, tensor, cluster, facts):
            asked.append(facts)
            return super().plan(tensor, cluster, facts)

    place = placement([2], [2])
    object.__setattr__(place, "planner", Counting())
    tables, others = [table()] * 2, [table(partition_bytes=4000)] * 2
    first, again, other = (plan_key(3, 2000, 4, them, place) for them in (tables, list(tables), others))
    assert first is again
    assert (first.num_shards, other.num_shards) == (125, 2)
    assert len(asked) == 2


TWO = {"homes": (0, 1), "num_shards": 2, "blocks": (Block(first=0, last=2, members=(0,)),), "adds": ((0, 1), ())}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"homes": (0,)}, "wanted a home for each of 2 workers"),
        ({"homes": (0, 2)}, "worker 1 has its home on device 2, and there are devices 0 to 1"),
        ({"adds": ((0, 1, 2), ())}, r"device 0 adds \(0, 1, 2\), and reaches each of \(0, 1\) of its node once"),
        ({"adds": ((0,), ())}, r"no member adds \[1\]"),
        ({"blocks": (Block(first=0, last=2, members=(0, 1)),), "adds": ((0, 1), (1,))}, r"\[1\] are added twice"),
        ({"blocks": (Block(first=0, last=1, members=(0,)),)}, "blocks end at shard 1 of 2"),
        ({"blocks": (Block(first=1, last=2, members=(0,)),)}, r"blocks must take shards 0..2 in order"),
        ({"blocks": (Block(first=0, last=2, members=(0, 0)),)}, "different ones of 2 devices"),
        ({"blocks": (Block(first=0, last=2, members=(0, 7)),)}, "different ones of 2 devices"),
        ({"blocks": (Block(first=0, last=2, members=(0,), exchange="tree"),)}, "one of ring, star, got 'tree'"),
        ({"num_shards": 0, "blocks": ()}, "at least one shard, got 0"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_in_a_sentence(wrong, said):
    class Given(Strategy):
        def plan(self, tensor, cluster, facts):
            return Plan(**{**TWO, **wrong})

    place = placement([2], [2])
    object.__setattr__(place, "planner", Given())
    with pytest.raises(ConfigError, match=said):
        place.plan_of(Tensor(1, 100, 4), ())


def test_what_is_no_plan_is_refused():
    class Nothing(Strategy):
        def plan(self, tensor, cluster, facts):
            return None

    place = placement([1], [1])
    object.__setattr__(place, "planner", Nothing())
    with pytest.raises(ConfigError, match=r"Nothing.plan of .*: wanted a Plan, got None"):
        place.plan_of(Tensor(1, 100, 4), ())
