"""A client that shuts down while others wait for it: records in, records out, by hand."""

import pytest

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Descriptor,
    Died,
    Failed,
    Join,
    Joined,
    JoinFailed,
    Leave,
    Push,
    Register,
    RingChunk,
    Table,
    key_of,
)
from coarse.proxy.instructions import Finished, Reduce, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.strategy.builtin import Coarse

LATENCY_DEVICE, BANDWIDTH_DEVICE, THRESHOLD_BYTES = 0, 1, 100


def placement(*, nodes: bool = False) -> Placement:
    """Two clients and two devices, on one node or on a node each."""
    return Placement(
        client_nodes=(0, int(nodes)),
        device_nodes=(0, int(nodes)),
        local_proxies=(0, 1),
        ranks=(0, 1, 2, 3),
        planner=Coarse(),
        num_sync_groups=2,
    )


def descriptor(name: str, num_elements: int = 4) -> Descriptor:
    return Descriptor(name, int(DType.FLOAT32), int(Op.SUM), (num_elements,), 0)


class Device:
    """One proxy machine that has all tables; what clients tell it, and what it said."""

    def __init__(self, device: int, *, nodes: bool = False) -> None:
        self.protocol = ProxyProtocol(device, placement(nodes=nodes), 1 << 20)
        for client in range(2):
            near = (client, client) if nodes else (LATENCY_DEVICE, BANDWIDTH_DEVICE)
            self.tell(Table(client, 1, (THRESHOLD_BYTES, *near, 1 << 20)))

    def tell(self, record) -> list:
        steps = self.protocol.on_record(record)
        for step in [step for step in steps if type(step).__name__ == "Reserve"]:
            steps += self.protocol.on_reserved(step.request, "")
        return steps

    def register(self, client: int, name: str, num_elements: int = 4) -> list:
        at = Register(client, key_of(name), 1, descriptor(name, num_elements), -1, -1)
        return self.tell(at)

    def push(self, client: int, name: str) -> list:
        return self.tell(Push(client, key_of(name), 1, 0, 0, 1, True))


def failures(steps: list) -> dict[int, Failed]:
    """Endpoint -> what it is told."""
    return {
        step.endpoint: step.record
        for step in steps
        if isinstance(step, Send) and isinstance(step.record, Failed)
    }


def folder_of(name: str) -> int:
    """The device of the one node that reduces the only shard of a small key."""
    return key_of(name) % 2


@pytest.fixture
def name() -> str:
    return next(name for name in ("x", "y", "z") if folder_of(name) == LATENCY_DEVICE)


def test_a_client_that_waits_is_told_at_once_who_has_shut_down(name):
    device = Device(0)
    device.register(0, name)
    device.register(1, name)
    device.push(0, name)
    told = failures(device.tell(Leave(1)))
    assert told.keys() == {0, 1, 3}  # both clients that registered here, and the other device
    assert told[0].error == "DeadRankError"
    assert told[0].rank == 1
    assert "rank 1" in told[0].text
    assert repr(name) in told[0].text


def test_who_leaves_because_another_died_is_not_blamed_for_it(name):
    device = Device(0)
    device.register(0, name)
    device.register(1, name)
    device.push(0, name)
    told = [step.record for step in device.tell(Died(3, "memory device 1 (MPI rank 3) died")) if step.endpoint == 0]
    assert told == [Died(3, "memory device 1 (MPI rank 3) died")]
    assert not failures(device.tell(Leave(1)))


def test_a_push_after_the_other_client_has_left_fails_at_once(name):
    device = Device(0)
    device.register(0, name)
    device.register(1, name)
    assert not failures(device.tell(Leave(1)))
    assert failures(device.push(0, name))[0].rank == 1


def test_what_a_client_has_pushed_before_it_left_counts(name):
    device = Device(0)
    device.register(0, name)
    device.register(1, name)
    device.push(1, name)
    assert not failures(device.tell(Leave(1)))
    steps = device.push(0, name)
    assert not failures(steps)
    assert any(isinstance(step, Reduce) and len(step.sources) == 2 for step in steps)


def test_a_name_that_a_client_never_used_fails_where_it_would_have_registered():
    latency, bandwidth = Device(LATENCY_DEVICE), Device(BANDWIDTH_DEVICE)
    for device in (latency, bandwidth):
        device.tell(Leave(1))
    assert failures(latency.register(0, "small"))[0].rank == 1
    located = [s.record for s in bandwidth.register(0, "large", 100) if isinstance(s, Send)]
    assert any(isinstance(record, Failed) for record in located)
    assert not failures(latency.tell(located_of(located)))


def located_of(records: list):
    return next(record for record in records if type(record).__name__ == "Located")


def test_a_ring_that_others_began_fails_at_the_node_of_the_client_that_left():
    device = Device(1, nodes=True)
    device.register(1, "ring")
    near = Device(0, nodes=True)
    device.tell(located_of([s.record for s in near.register(0, "ring") if isinstance(s, Send)]))
    assert not failures(device.tell(Leave(1)))
    told = failures(device.protocol.on_chunk(RingChunk(key_of("ring"), 1, 0, 0, 0, 0, True)))
    assert told[2].rank == 1  # device 0, which tells its client
    assert failures(near.tell(told[2]))[0] == told[2]


def failed_joins(steps: list) -> dict[int, JoinFailed]:
    """Endpoint -> what it is told of a round of joins."""
    return {s.endpoint: s.record for s in steps if isinstance(s, Send) and isinstance(s.record, JoinFailed)}


@pytest.mark.parametrize("events", [(Join(0, 0, 0), Leave(1)), (Leave(1), Join(0, 0, 0))])
def test_who_joins_is_told_who_has_shut_down_without_joining(events):
    own, other = Device(1), Device(0)  # client 1 is device 1's, which alone knows what it has joined
    told = {}
    for event in events:
        told |= failed_joins(own.tell(event))
        assert not failed_joins(other.tell(event))
    assert told.keys() == {1, 2}  # own clients, and the other device
    assert told[2].rank == 1
    assert "rank 1 (MPI rank 1) has shut down without join()" in told[2].text
    assert failed_joins(other.tell(told[2])) == {0: told[2]}


def test_who_leaves_after_a_round_of_joins_harms_nobody():
    device = Device(1)
    for event in (Join(1, 0, 0), Joined(0, 0), Leave(1), Join(0, 0, 0)):  # the end may overtake a far client's join
        assert not failed_joins(device.tell(event))


def test_who_leaves_where_nobody_joins_is_not_told():
    device = Device(1)
    assert not failed_joins(device.tell(Leave(1)))
    assert not failed_joins(device.tell(Leave(0)))


def test_a_device_ends_once_all_clients_have_left():
    device = Device(0)
    assert Finished() not in device.tell(Leave(0))
    assert Finished() in device.tell(Leave(1))


def test_only_devices_of_other_nodes_are_told_by_a_device_that_a_client_left():
    def told(*, nodes: bool) -> list[int]:
        steps = Device(0, nodes=nodes).tell(Leave(0))
        return [s.endpoint for s in steps if isinstance(s, Send) and isinstance(s.record, Leave)]

    assert told(nodes=False) == []
    assert told(nodes=True) == [3]
