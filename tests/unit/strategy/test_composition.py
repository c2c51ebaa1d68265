import pytest

from coarse.errors import ConfigError
from coarse.protocol.config import Config, FixedRouting, MeasuredRouting
from coarse.protocol.partition import partition_from_nodes, partition_from_text
from coarse.protocol.plan import Placement, Tensor
from coarse.protocol.units import GIB
from coarse.strategy.builtin import Allreduce, Auto, Coarse, Paper
from coarse.strategy.named import placement_of, strategy_of

FIXED = FixedRouting(threshold_bytes=0, partition_bytes=4096)


def placed(partition, config: Config) -> Placement:
    return placement_of(partition, config, strategy_of(config))


def test_dense_keeps_and_adds_everything_on_the_first_device_in_whole_tensors():
    placement = placed(partition_from_text("3:4", ["here"] * 7), Config(mode="dense"))
    plan = placement.plan_of(Tensor(5, 25 * GIB, 4), ((),) * 3)
    assert plan.homes == (0, 0, 0)
    assert plan.num_shards == 1
    assert plan.contributors_by_device == ((0, 1, 2), (), (), ())


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, Auto),
        ({"policy": "paper"}, Paper),
        ({"policy": "devices"}, Coarse),
        ({"mode": "allreduce", "policy": "paper"}, Allreduce),
    ],
)
def test_a_mode_is_a_strategy_with_the_partition_and_the_routing_as_configured(settings, kind):
    partition = partition_from_text("3:4", ["here"] * 7)
    config = Config(routing=FIXED, collective="ring", **settings)
    placement = placed(partition, config)
    assert placement.local_proxies == partition.local_proxies
    assert placement.planner == kind(routing=FIXED, collective="ring")
    assert strategy_of(Config(**settings)) == kind(routing=MeasuredRouting())


def test_dense_on_two_nodes_is_refused_with_the_reason():
    partition = partition_from_nodes(["a", "a", "b", "b"])
    with pytest.raises(ConfigError, match=r"one node, got 2: .*no coherent link.*use mode \"coarse\""):
        placed(partition, Config(mode="dense"))


@pytest.mark.parametrize(
    ("contradiction", "key"), [({"collective": "ring"}, "collective"), ({"routing": FIXED}, "routing")]
)
def test_what_contradicts_one_device_for_all_is_refused(contradiction, key):
    with pytest.raises(ConfigError, match=r'mode "dense".*use mode "coarse"') as caught:
        placed(partition_from_text("2:2", ["here"] * 4), Config(mode="dense", **contradiction))
    assert caught.value.key == key


def test_a_fixed_route_to_another_nodes_device_is_refused():
    partition = partition_from_nodes(["a", "a", "b", "b"])
    routing = FixedRouting(threshold_bytes=0, partition_bytes=4096, latency_proxy=1)
    with pytest.raises(ConfigError, match=r"routing\.latency_proxy .*\(0,\) for worker 0, got 1"):
        placed(partition, Config(routing=routing))
