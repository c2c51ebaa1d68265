"""The order of a trace's nodes, and graphs that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.cli.chakra.graph import GraphError, in_order, unknown_controls
from coarse.cli.chakra.messages import Node, NodeType


def graph(**parents):
    """Nodes a, b, ... that depend on those of a text; records are counted from 2."""
    return [
        Node(id=ord(name), name=name, type=NodeType.COMP, data_deps=tuple(map(ord, deps)), record=number)
        for number, (name, deps) in enumerate(parents.items(), start=2)
    ]


@given(st.permutations("abcdef"), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_nodes_come_after_what_they_wait_for_in_whatever_order_they_are_written(names, edges):
    earlier = {name: [low for low, high in edges if low < high == "abcdef".index(name)] for name in names}
    parents = {name: "".join("abcdef"[low] for low in lows) for name, lows in earlier.items()}
    ordered = [node.name for node in in_order(graph(**parents))]
    assert sorted(ordered) == sorted(names)
    for name, deps in parents.items():
        assert all(ordered.index(parent) < ordered.index(name) for parent in deps)


def test_of_nodes_that_may_run_the_lowest_id_comes_first():
    assert [node.name for node in in_order(graph(d="", b="", c="d", a="c"))] == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"a": "b", "b": "c", "c": "a"}, "a circle: record 2 ('a') waits for record 3 ('b')"),
        ({"a": "a"}, "a circle: record 2 ('a') waits for record 2 ('a')"),
        ({"a": "", "b": "ax"}, "record 3 ('b') depends on node 120, and there is none"),
    ],
)
def test_a_graph_that_is_none_is_refused_by_record(parents, message):
    with pytest.raises(GraphError) as refused:
        in_order(graph(**parents))
    assert message in str(refused.value)


def test_an_id_that_occurs_twice_is_refused_by_both_records():
    with pytest.raises(GraphError, match="records 2 and 3 both have id 97"):
        in_order([*graph(a=""), Node(id=97, type=NodeType.COMP, record=3)])


def test_control_dependencies_on_no_node_are_counted_and_do_not_order():
    nodes = [Node(id=1, type=NodeType.COMP, ctrl_deps=(2, 9)), Node(id=2, type=NodeType.COMP)]
    assert unknown_controls(nodes) == 1
    assert [node.id for node in in_order(nodes)] == [1, 2]
