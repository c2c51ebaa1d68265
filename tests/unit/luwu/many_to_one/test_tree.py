"""Trees between workers' hosts and an optimizer node: who is attached where, who adds whom, and what is no tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.luwu.many_to_one.tree import Tree, plan_tree
from coarse.protocol.plan import Placement
from coarse.strategy.builtin import Coarse


def placed(client_nodes, device_nodes) -> Placement:
    ranks = tuple(range(len(client_nodes) + len(device_nodes)))
    return Placement(
        client_nodes=tuple(client_nodes), device_nodes=tuple(device_nodes), local_proxies=(0,) * len(client_nodes),
        ranks=ranks, planner=Coarse(), num_sync_groups=1,
    )  # fmt: skip


PLACE = placed((0, 0, 1), (0, 1, 2, 3, 4))
"""Workers 0 and 1 with device 0, worker 2 with device 1, the others alone."""
FIRST_DEVICE = PLACE.num_clients


def below(tree: Tree, device: int) -> list[int]:
    """Workers as they are, devices from 100 on."""
    first = tree.placement.num_clients
    return [one if one < first else 100 + one - first for one in tree.children(device)]


# --- who is where


def test_without_switches_hosts_stand_below_the_root():
    tree = plan_tree(3, 0, PLACE, {})
    assert tree.devices == (3, 0, 1)
    assert tree.parents == {0: 3, 1: 3}
    assert tree.hubs == {0: 0, 1: 1}
    assert (below(tree, 3), below(tree, 0), below(tree, 1)) == ([100, 101], [0, 1], [2])


def test_on_a_workers_host_the_root_is_its_hub():
    tree = plan_tree(0, 0, PLACE, {})
    assert tree.devices == (0, 1)
    assert below(tree, 0) == [0, 1, 101]
    assert tree.child_devices(0) == (1,)


def test_a_switch_stands_between():
    tree = plan_tree(3, 0, PLACE, {2: [0, 1]})
    assert tree.devices == (3, 0, 1, 2)
    assert (below(tree, 3), below(tree, 2)) == ([102], [100, 101])


def test_a_switch_may_have_some_hosts_alone():
    tree = plan_tree(3, 0, PLACE, {2: [1]})
    assert (below(tree, 3), below(tree, 2)) == ([100, 102], [101])


def test_switches_may_stand_before_one_another():
    tree = plan_tree(3, 0, PLACE, {2: [0], 4: [2, 1]})
    assert (below(tree, 3), below(tree, 4), below(tree, 2)) == ([104], [102, 101], [100])
    assert tree.workers_below(FIRST_DEVICE + 4) == (0, 1, 2)
    assert tree.workers_below(FIRST_DEVICE + 2) == (0, 1)


def test_a_workers_device_may_be_a_switch():
    tree = plan_tree(3, 0, PLACE, {0: [1]})
    assert (below(tree, 3), below(tree, 0)) == ([100], [0, 1, 101])


def test_a_root_that_is_named_below_a_switch_is_above_it():
    tree = plan_tree(3, 0, PLACE, {2: [0, 3], 4: [2]})
    assert tree.devices == (3, 0, 1, 2, 4)
    assert (below(tree, 3), below(tree, 4)) == ([104, 101], [102])
    assert 3 not in tree.parents


def test_the_root_may_be_named_as_a_switch():
    assert plan_tree(3, 0, PLACE, {3: [0]}) == plan_tree(3, 0, PLACE, {})


@pytest.mark.parametrize("switches", [{2: []}, {2: [4]}, {4: [2]}, {2: [4], 4: []}])
def test_devices_that_have_nobody_below_take_no_part(switches):
    assert plan_tree(3, 0, PLACE, switches) == plan_tree(3, 0, PLACE, {})


def test_the_same_device_twice_below_one_switch_is_there_once():
    assert plan_tree(3, 0, PLACE, {2: [0, 0, 1]}) == plan_tree(3, 0, PLACE, {2: [0, 1]})


def test_hosts_of_several_devices_give_each_optimizer_node_another():
    place = placed((0, 0), (0, 0, 1, 1))
    assert [plan_tree(root, number, place, {}).hubs[0] for number, root in enumerate((2, 3, 2))] == [0, 1, 0]
    assert [plan_tree(root, number, place, {}).hubs[0] for number, root in enumerate((1, 0))] == [1, 0]


# --- the order of sums


def test_children_come_by_their_least_worker():
    tree = plan_tree(2, 0, placed((1, 0, 1, 0), (0, 1, 2)), {})
    assert below(tree, 2) == [101, 100]
    assert (below(tree, 1), below(tree, 0)) == ([0, 2], [1, 3])


def test_own_workers_and_devices_are_one_order():
    tree = plan_tree(1, 0, placed((0, 1, 2, 1), (0, 1, 2)), {})
    assert below(tree, 1) == [100, 1, 102, 3]


def test_a_switch_comes_by_the_least_worker_below_it():
    place = placed((0, 1, 2, 3), (0, 1, 2, 3, 4, 5))
    tree = plan_tree(5, 0, place, {4: [3, 1]})
    assert (below(tree, 5), below(tree, 4)) == ([100, 104, 102], [101, 103])


def test_a_worker_has_itself_below():
    assert plan_tree(3, 0, PLACE, {}).workers_below(1) == (1,)


@st.composite
def some_trees(draw):
    """Hosts with a device each, and devices alone, each below one that has a higher number or below none."""
    num_hosts, num_alone = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    clients = draw(st.lists(st.integers(0, num_hosts - 1), min_size=1, max_size=8))
    place = placed(clients, range(num_hosts + num_alone))
    switches: dict[int, list[int]] = {}
    for device in range(place.num_devices - 1):
        above = draw(st.none() | st.integers(device + 1, place.num_devices - 1))
        if above is not None:
            switches.setdefault(above, []).append(device)
    return plan_tree(draw(st.integers(0, place.num_devices - 1)), 0, place, switches)


@given(some_trees())
def test_all_workers_reach_the_root_by_one_way(tree):
    workers = tuple(range(tree.placement.num_clients))
    first = tree.placement.num_clients
    assert tree.workers_below(first + tree.root) == workers
    seen = sorted(endpoint for device in tree.devices for endpoint in tree.children(device))
    assert seen == [*workers, *sorted(first + device for device in tree.parents)]
    for device in tree.devices:
        parts = [tree.workers_below(endpoint) for endpoint in tree.children(device)]
        assert [part[0] for part in parts] == sorted(part[0] for part in parts)
        assert sorted(worker for part in parts for worker in part) == list(tree.workers_below(first + device))


# --- what is no tree


@pytest.mark.parametrize(
    ("switches", "text"),
    [
        ({2: [0], 1: [0]}, "memory device 0 stands below 2 and below 1; name it once"),
        ({2: [0, 2]}, "circle"),
        ({2: [0, 4], 4: [2]}, "circle"),
        ({1: [0], 0: [1]}, "circle"),
        ({2: [0, 7, 9]}, r"memory devices \[7, 9\]; there are 5"),
        ({9: []}, r"memory devices \[9\]; there are 5"),
        ({-1: [0]}, r"memory devices \[-1\]"),
        ({5: [0]}, r"memory devices \[5\]"),
    ],
)
def test_switches_that_make_no_tree_are_refused(switches, text):
    with pytest.raises(ConfigError, match=text) as refused:
        plan_tree(3, 0, PLACE, switches)
    assert refused.value.key == "switches"


def test_workers_without_a_device_on_their_host_are_refused():
    with pytest.raises(ConfigError, match="node 1 has workers and no memory device") as refused:
        plan_tree(0, 0, placed((0, 1), (0, 2)), {})
    assert refused.value.key == "partition"
