import pytest

from coarse.errors import ConfigError
from coarse.protocol.composition import placement_of, routing_of
from coarse.protocol.config import Config, FixedRouting, MeasuredRouting
from coarse.protocol.partition import partition_from_nodes, partition_from_text
from coarse.protocol.plan import count_shards
from coarse.protocol.units import GIB

FIXED = FixedRouting(threshold_bytes=0, partition_bytes=4096)


def test_dense_keeps_and_adds_everything_on_the_first_device_in_whole_tensors():
    config = Config(mode="dense")
    placement = placement_of(partition_from_text("3:4", ["here"] * 7), config)
    assert placement.adders_on(0) == (0,)
    assert set(placement.local_proxies) == {0}
    routing = routing_of(config)
    assert isinstance(routing, FixedRouting)
    assert (routing.latency_proxy, routing.bandwidth_proxy) == (None, None)
    assert count_shards(100 * GIB, routing.partition_bytes) == 1


@pytest.mark.parametrize("mode", ["coarse", "allreduce"])
def test_other_modes_leave_the_partition_and_the_routing_as_configured(mode):
    partition = partition_from_text("3:4", ["here"] * 7)
    placement = placement_of(partition, Config(mode=mode, routing=FIXED))
    assert placement.adders_on(0) == (0, 1, 2, 3)
    assert placement.local_proxies == partition.local_proxies
    assert routing_of(Config(mode=mode, routing=FIXED)) == FIXED
    assert routing_of(Config(mode=mode)) == MeasuredRouting()


def test_dense_on_two_nodes_is_refused_with_the_reason():
    partition = partition_from_nodes(["a", "a", "b", "b"])
    with pytest.raises(ConfigError, match=r"one node, got 2 \(a, b\).*no coherent link.*use mode \"coarse\""):
        placement_of(partition, Config(mode="dense"))


@pytest.mark.parametrize(
    ("contradiction", "key"), [({"collective": "ring"}, "collective"), ({"routing": FIXED}, "routing")]
)
def test_what_contradicts_one_device_for_all_is_refused(contradiction, key):
    with pytest.raises(ConfigError, match=r'mode "dense".*use mode "coarse"') as caught:
        placement_of(partition_from_text("2:2", ["here"] * 4), Config(mode="dense", **contradiction))
    assert caught.value.key == key


def test_a_fixed_route_to_another_nodes_device_is_refused():
    partition = partition_from_nodes(["a", "a", "b", "b"])
    routing = FixedRouting(threshold_bytes=0, partition_bytes=4096, latency_proxy=1)
    with pytest.raises(ConfigError, match=r"routing\.latency_proxy .*\(0,\) for worker 0, got 1"):
        placement_of(partition, Config(routing=routing))
