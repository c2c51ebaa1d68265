"""Sizes of shards are those of the plan."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.emulation.envelope import KeyPlaces
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement, Tensor
from coarse.protocol.records import Descriptor, Located, Register, Registered, Table, Tables, key_of
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import RoutingTable

PLACEMENT = Placement(
    client_nodes=(0, 0), device_nodes=(0, 0), local_proxies=(0, 1), ranks=(0, 1, 2, 3),
    planner=Coarse(collective="ring"), num_sync_groups=2,
)  # fmt: skip


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_shards_have_the_bytes_that_the_plan_gives_them(num_elements, first, second):
    tables = [
        RoutingTable(threshold_bytes=0, latency_proxy=c, bandwidth_proxy=c, partition_bytes=size)
        for c, size in enumerate((first, second))
    ]
    key = key_of("x")
    plan = PLACEMENT.plan_of(Tensor(key, num_elements, 4), tuple(tables))
    sizes = KeyPlaces(0, PLACEMENT)
    for client, table in enumerate(tables):
        sizes.note(Table(client, 1, (0, client, client, table.partition_bytes)), 2)
    sizes.note(Register(0, key, 1, Descriptor("x", DType.FLOAT32, Op.SUM, (num_elements,), 0), -1, -1), 2)
    for shard in {0, plan.num_shards // 2, plan.num_shards - 1}:
        begin, end = plan.bounds(shard, shard + 1)
        assert sizes.nbytes(key, shard, shard + 1) == (end - begin) * 4


def test_a_new_epoch_has_partition_sizes_of_its_own():
    sizes = KeyPlaces(0, PLACEMENT)
    key = key_of("x")
    sizes.note(Register(0, key, 1, Descriptor("x", DType.FLOAT32, Op.SUM, (100,), 0), -1, -1), 2)
    sizes.note(Tables(1, ((0, 0, 0, 400), (0, 0, 0, 100))), 2)
    assert sizes.nbytes(key, 0, 1) == 400
    sizes.note(Tables(2, ((0, 0, 0, 100), (0, 0, 0, 100))), 2)
    assert sizes.nbytes(key, 0, 1) == 100


def test_a_table_of_the_next_epoch_changes_no_size_until_every_client_has_said_its_own():
    """A device hears of them one by one, while it still brings results of the epoch before."""
    sizes, key = KeyPlaces(2, PLACEMENT), key_of("x")
    sizes.note(Register(0, key, 1, Descriptor("x", DType.FLOAT32, Op.SUM, (100,), 0), -1, -1), 0)
    for client in (1, 0):
        sizes.note(Table(client, 1, (0, client, client, 400)), client)
    assert sizes.nbytes(key, 0, 1) == 400
    sizes.note(Table(1, 2, (0, 1, 1, 100)), 1)
    assert sizes.nbytes(key, 0, 1) == 400
    sizes.note(Table(0, 2, (0, 0, 0, 100)), 0)
    assert sizes.nbytes(key, 0, 1) == 100


def test_a_key_lies_where_each_side_was_told():
    """A client hears it of its own key; a device knows what it gave, and what other devices gave."""
    key = key_of("x")
    client, device = KeyPlaces(1, PLACEMENT), KeyPlaces(2, PLACEMENT)
    client.note(Registered(key, 1, 1, 0), 3)
    device.note(Registered(key, 1, 0, 64), 0)
    device.note(Located(1, key, 1, Descriptor("x", DType.FLOAT32, Op.SUM, (4,), 0), 1, 0), 3)
    assert client.device(key, 1) == 1
    assert [device.device(key, each) for each in (0, 1)] == [0, 1]
