from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.protocol.partition import (
    PartitionTable,
    RankPlace,
    Role,
    partition_from_nodes,
    partition_from_text,
)

BOTH = Role.WORKER | Role.MEMORY_DEVICE


def test_the_default_is_half_and_half_on_each_node_with_workers_first():
    table = partition_from_nodes(["a", "a", "b", "b", "a", "a"])
    assert table.workers == (0, 1, 2)
    assert table.devices == (3, 4, 5)
    assert table.local_proxies == (1, 2, 0)
    assert table.devices_on("a") == (1, 2)
    assert table.clients_on("b") == (2,)


def test_the_odd_rank_of_a_node_is_a_worker():
    table = partition_from_nodes(["a"] * 5)
    assert (table.workers, table.devices) == ((0, 1, 2), (3, 4))


def test_a_lone_rank_has_both_roles():
    table = partition_from_nodes(["a"])
    assert table.places[0].roles == BOTH
    assert (table.workers, table.devices, table.local_proxies) == ((0,), (0,), (0,))


def test_two_workers_share_one_device_in_order():
    table = partition_from_nodes(["a"] * 6, workers=4, devices=2)
    assert table.workers == (0, 1, 2, 3)
    assert table.local_proxies == (0, 0, 1, 1)


def test_devices_are_dealt_to_nodes_in_proportion():
    table = partition_from_nodes(["a"] * 6 + ["b"] * 3, workers=6, devices=3)
    assert table.devices == (4, 5, 8)
    assert table.local_proxies == (0, 0, 1, 1, 2, 2)


def test_workers_alone_leave_the_rest_to_devices():
    table = partition_from_nodes(["a"] * 4, workers=3)
    assert (table.num_workers, table.num_devices) == (3, 1)


@pytest.mark.parametrize(("workers", "devices"), [(2, 3), (4, 0), (0, 4), (1, 2), (5, -1)])
def test_numbers_that_do_not_fit_the_ranks_are_refused(workers, devices):
    with pytest.raises(ConfigError, match=f"{workers} workers and {devices} memory devices"):
        partition_from_nodes(["a"] * 4, workers=workers, devices=devices)


def test_no_rank_at_all_is_refused():
    with pytest.raises(ConfigError, match="no worker among 0 ranks"):
        partition_from_nodes([])


def test_a_node_with_workers_and_no_device_is_refused_by_name():
    with pytest.raises(ConfigError, match="node b has worker rank 2 but no memory device"):
        partition_from_nodes(["a", "a", "b", "b"], workers=3, devices=1)


@given(
    ranks=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    extra_devices=st.integers(0, 20),
)
def test_any_split_with_a_device_per_node_is_spread_in_proportion(ranks, extra_devices):
    nodes = [f"node{i}" for i, num_ranks in enumerate(ranks) for _ in range(num_ranks)]
    num_devices = min(len(ranks) + extra_devices, len(nodes) - 1)
    table = partition_from_nodes(nodes, workers=len(nodes) - num_devices, devices=num_devices)
    assert (table.num_workers, table.num_devices) == (len(nodes) - num_devices, num_devices)
    for i, num_ranks in enumerate(ranks):
        dealt = len(table.devices_on(f"node{i}"))
        assert 1 <= dealt <= num_ranks
        for j, other_ranks in enumerate(ranks):
            other = len(table.devices_on(f"node{j}"))
            assert other == 1 or num_ranks / dealt <= other_ranks / (other - 1) + 1e-12


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_every_default_table_keeps_proxies_local_and_shares_them_evenly(nodes):
    table = partition_from_nodes(nodes)
    for client, device in enumerate(table.local_proxies):
        assert table.node_of_device(device) == table.node_of_client(client)
    for node in set(nodes):
        local = [table.local_proxies[client] for client in table.clients_on(node)]
        assert local == sorted(local)
        sharers = Counter(local).values()
        assert max(sharers) - min(sharers) <= 1
        assert set(local) == set(table.devices_on(node))


def test_ranks_find_their_index_by_role():
    table = partition_from_text("worker, memory_device, both", ["a"] * 3)
    assert [table.client_of(rank) for rank in range(3)] == [0, None, 1]
    assert [table.device_of(rank) for rank in range(3)] == [None, 0, 1]


def test_text_may_count_workers_and_devices():
    assert partition_from_text("2:1", ["a"] * 3) == partition_from_nodes(
        ["a"] * 3, workers=2, devices=1
    )


def test_a_misspelt_role_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"worker, memory_device, both, got 'device'"):
        partition_from_text("worker,device", ["a"] * 2)


def test_text_for_another_number_of_ranks_is_refused():
    with pytest.raises(ConfigError, match="for 2 ranks, but 3 run"):
        partition_from_text("worker,memory_device", ["a"] * 3)


def test_text_without_a_device_is_refused():
    with pytest.raises(ConfigError, match="no memory device"):
        partition_from_text("worker,worker", ["a"] * 2)


def test_a_table_made_by_hand_is_checked_too():
    places = tuple(partition_from_text("worker,memory_device", ["a"] * 2).places)
    with pytest.raises(ConfigError, match="in order"):
        PartitionTable(places=places[::-1], local_proxies=(0,))
    for local_proxies in ((), (1,), (-1,), (0, 0)):
        with pytest.raises(ConfigError, match="local_proxies"):
            PartitionTable(places=places, local_proxies=local_proxies)
    with pytest.raises(ConfigError, match="rank 0 has no role"):
        RankPlace(rank=0, roles=Role(0), node="a")
