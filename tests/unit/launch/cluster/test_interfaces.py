"""Bytes of interfaces and of devices, in tables worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.launch.cluster.interfaces import Crossed, NodeTraffic, carried_by_nodes, crossed, traffic_lines

DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  385858     124    0    0    0     0          0         0   385859     124    0    0    0     0       0          0
  eth0:5230899    3254    0    0    0     0          0         0    59927     677    0    0    0     0       0          0
"""  # noqa: E501


def test_bytes_are_read_from_the_kernels_table():
    assert crossed(DEV, "eth0") == Crossed(received_bytes=5230899, sent_bytes=59927)
    assert crossed(DEV, "lo") == Crossed(received_bytes=385858, sent_bytes=385859)
    with pytest.raises(KeyError):
        crossed(DEV, "eth1")


@given(st.tuples(*[st.integers(0, 2**60)] * 4))
def test_what_came_on_top_is_what_was_added(values):
    before, more = Crossed(*values[:2]), Crossed(*values[2:])
    assert (before + more).since(before) == more


def test_a_node_has_carried_what_its_ranks_have_and_nothing_is_said_where_one_has_not_told():
    told = {2: Crossed(10, 20), 3: Crossed(1, 2), 6: Crossed(5, 5)}
    ranks = {"a": frozenset({2, 3}), "b": frozenset({6, 7})}
    assert carried_by_nodes(told, ranks) == {"a": Crossed(11, 22), "b": None}


def test_the_table_shows_both_counts_and_what_lies_between_them():
    rows = [
        NodeTraffic(
            node="node1",
            interface=Crossed(1_050_000, 1_030_000),
            carried=Crossed(1_000_000, 1_000_000),
            reduced_bytes=0,
        ),
        NodeTraffic(node="node2", interface=Crossed(2_000_000, 1_000), carried=None, reduced_bytes=None),
        NodeTraffic(node="node3", interface=Crossed(70_000, 80_000), carried=Crossed(0, 0), reduced_bytes=25_000),
        NodeTraffic(node="node4", interface=None, carried=None, reduced_bytes=None),
    ]
    heading, _, first, second, third, fourth = traffic_lines(rows, "100mbit")
    assert heading.endswith("(measured, cluster in a box, links of 100mbit in each direction)")
    assert first.split() == ["node1", "1.050", "1.030", "1.000", "1.000", "4.0%", "0.000"]
    assert second.split() == ["node2", "2.000", "0.001", *["not", "told"] * 3]
    assert fourth.split() == ["node4", *["not", "told"] * 5]
    assert third.split() == ["node3", "0.070", "0.080", "0.000", "0.000", "0.150", "MB", "0.025"]
