"""Which ranks stand on which node, worked out by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.launch.cluster.shape import MOST_NODES, ClusterShape, hosts_of_ranks, require_shape, shape_from_text
from coarse.protocol.partition_file import stated_or_default, stated_partition


@pytest.mark.parametrize(
    ("text", "devices", "shape"),
    [("2x2", None, (2, 2, 2)), ("4X1", None, (4, 1, 1)), (" 1x3 ", 1, (1, 3, 1)), ("2x2", 5, (2, 2, 5))],
)
def test_a_text_says_nodes_and_workers_of_each_and_a_device_for_every_worker(text, devices, shape):
    found = shape_from_text(text, devices)
    assert (found.num_nodes, found.workers_per_node, found.devices_per_node) == shape


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("0x2", None, "--cluster must have 1 to 4 nodes, got 0"),
        ("5x2", None, "--cluster must have 1 to 4 nodes, got 5"),
        ("2x0", None, "--cluster must have 1 to 64 workers on each node, got 0"),
        ("2x65", None, "--cluster must have 1 to 64 workers on each node, got 65"),
        ("2x2", 0, "--devices must be 1 to 64, the memory devices of each node, got 0"),
        ("2", None, "--cluster must be NODESxWORKERS, such as 2x2 (two nodes, two workers on each), got '2'"),
        ("-1x2", None, "got '-1x2'"),
        ("2x2x2", None, "got '2x2x2'"),
        ("twoxtwo", None, "got 'twoxtwo'"),
        ("", None, "got ''"),
        ("9999999999x1", None, "got '9999999999x1'"),
    ],
)
def test_other_shapes_are_refused_with_what_is_wanted(text, devices, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        shape_from_text(text, devices)


@given(nodes=st.integers(1, MOST_NODES), workers=st.integers(1, 8), devices=st.integers(1, 8))
def test_the_partition_of_a_shape_puts_its_ranks_on_every_node(nodes, workers, devices):
    shape = ClusterShape(num_nodes=nodes, workers_per_node=workers, devices_per_node=devices)
    names = tuple(f"n{number}" for number in range(nodes))
    hosts = hosts_of_ranks(nodes * (workers + devices), names)
    table = stated_or_default(shape.partition, hosts)
    for name in names:
        assert (len(table.clients_on(name)), len(table.devices_on(name))) == (workers, devices)
    require_shape(table, shape, hosts)
    assert table.num_workers == shape.num_workers


def test_workers_and_devices_by_number_are_dealt_to_nodes_as_a_job_will_deal_them():
    hosts = hosts_of_ranks(8, ("a", "b"))
    require_shape(stated_or_default("4:4", hosts), shape_from_text("2x2", None), hosts)


@pytest.mark.parametrize(
    ("stated", "text", "devices", "message"),
    [
        (
            "4:2",
            "2x2",
            2,
            "asks for 2 workers and 2 memory devices on each node, but the configuration's partition has 2 and 1",
        ),
        ("4:2", "2x1", None, "asks for 1 workers and 1 memory devices"),
        ("worker,memory_device,worker,both", "2x1", None, "has 2 and 1 among ranks 2 to 3"),
    ],
)
def test_a_cluster_that_contradicts_the_configuration_is_refused(stated, text, devices, message):
    table = stated_partition(stated)
    hosts = hosts_of_ranks(len(table.places), ("a", "b"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_shape(stated_or_default(stated, hosts), shape_from_text(text, devices, table), hosts)


def test_devices_that_the_configuration_states_need_not_be_repeated():
    assert shape_from_text("2x2", None, stated_partition("4:2")).devices_per_node == 1


def test_ranks_that_nodes_cannot_share_equally_are_refused():
    with pytest.raises(ConfigError, match="the partition has 5 ranks, which 2 nodes cannot share equally"):
        hosts_of_ranks(5, ("a", "b"))
