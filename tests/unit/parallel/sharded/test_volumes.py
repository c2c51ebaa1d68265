"""The formulas of FCDP's Table I and Section VI, against its examples and a count by hand."""

import pytest

from coarse.strategy.sharding import LIVE
from tests.support.volumes import TrainedShape, accelerator_nbytes, host_nbytes, iteration_volume

GIGA = 1e9
SHARDED = ("fsdp", "zeropp", "fcdp")


def shape(*, nodes: int = 4, workers: int = 32, whole: float = 60 * GIGA, trainable: float | None = None):
    part = whole if trainable is None else trainable
    return TrainedShape(
        num_nodes=nodes, num_workers=workers, parameter_nbytes=whole, trainable_nbytes=part, gradient_nbytes=part
    )


def test_memory_of_30_billion_parameters_on_4_nodes_of_8_is_as_in_vi_a():
    wanted = {"fsdp": 1.875, "fcdp": 1.875, "hybrid": 7.5, "zeropp": 9.375}
    for mode, gigabytes in wanted.items():
        assert accelerator_nbytes(mode, shape()) == pytest.approx(gigabytes * GIGA)
    assert host_nbytes("fcdp", shape()) == 60 * GIGA
    assert {host_nbytes(mode, shape()) for mode in LIVE if mode != "fcdp"} == {0}


def test_volumes_of_full_fine_tuning_are_3_w_and_2_w_as_in_vi_b():
    factor = 3 / 4 * 60 * GIGA
    totals = {mode: iteration_volume(mode, shape()).total for mode in SHARDED}
    assert totals == {"fsdp": 3 * factor, "zeropp": 2 * factor, "fcdp": 2 * factor}


def test_volumes_of_peft_are_2_w_plus_w_t_and_2_w_t_as_in_vi_c():
    peft = shape(trainable=0.6 * GIGA)
    fsdp, fcdp = (iteration_volume(mode, peft).total for mode in ("fsdp", "fcdp"))
    assert fsdp == pytest.approx(3 / 4 * (2 * 60 + 0.6) * GIGA)
    assert fcdp == pytest.approx(3 / 4 * 2 * 0.6 * GIGA)
    assert fsdp / fcdp == pytest.approx(100, rel=0.01)


def test_a_ring_crosses_each_border_with_all_shards_but_one():
    in_ring = iteration_volume("fsdp", shape(nodes=2, workers=4, whole=16), is_ring=True)
    assert (in_ring.forward_gather, in_ring.backward_gather, in_ring.reduce_scatter) == (12, 12, 12)


def test_one_node_sends_nothing_and_the_root_is_not_gathered_again_in_backward():
    assert all(iteration_volume(mode, shape(nodes=1, workers=8)).total == 0 for mode in LIVE)
    rooted = TrainedShape(
        num_nodes=2, num_workers=4, parameter_nbytes=16, trainable_nbytes=16, gradient_nbytes=16, root_nbytes=6
    )
    assert iteration_volume("fsdp", rooted).backward_gather == 5


def test_int8_gathers_shrink_forward_alone():
    exact, small = (iteration_volume("zeropp", shape(), gathered_part=part) for part in (1, 0.5))
    assert small.forward_gather == exact.forward_gather / 2
    assert small.reduce_scatter == exact.reduce_scatter
