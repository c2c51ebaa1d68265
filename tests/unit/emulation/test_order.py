"""An order on its way to the ranks is the scenario's job, on as many nodes."""

from dataclasses import replace

import pytest

from coarse.emulation.order import EmulationOrder, order_json, parse_emulation_order
from coarse.errors import ConfigError
from coarse.protocol.config import POLICIES
from coarse.strategy.builtin import Auto, tables_of

ORDER = EmulationOrder(
    machine="aws-p3", model="resnet50", gpu=None, batch=64, precision="fp32", mode="coarse", num_workers=4,
    num_devices=4, num_iterations=2, num_nodes=2,
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_read_the_job_that_was_decided(policy):
    order = replace(ORDER, policy=policy).decided()
    assert parse_emulation_order(order_json(order)) == order
    assert order.job() == replace(ORDER, policy=policy).scenario().job()


def test_workers_of_two_nodes_push_to_devices_of_their_own_though_all_ranks_are_on_one_host():
    order = ORDER.decided()
    job = order.job()
    assert job.placement.client_nodes == (0, 0, 1, 1)
    for node, table in zip(job.placement.client_nodes, tables_of(job.facts), strict=True):
        assert {table.latency_proxy, table.bandwidth_proxy} <= set(job.placement.devices_on(node))
    assert {place.node for place in order.partition(job).places} == {"node0"}


def test_dense_has_one_node():
    with pytest.raises(ConfigError, match=r"one memory device of dense .* 2 nodes; leave dense out"):
        replace(ORDER, mode="dense").scenario()


@pytest.mark.parametrize(("asked", "made"), [(None, "in_place"), ("ring", "ring")])
def test_devices_of_several_nodes_sum_as_live_or_as_asked(asked, made):
    assert replace(ORDER, collective=asked).decided().job().strategy == Auto(collective=made)
