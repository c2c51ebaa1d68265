"""A rank that dies: who is told, and when a device may end. Records in, instructions out."""

from coarse.protocol.plan import Placement
from coarse.protocol.records import Died, Leave
from coarse.proxy.instructions import Finished, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.strategy.builtin import Coarse


def placement(ranks: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Placement:
    """Clients 0 and 1 with device 0 on one node, client 2 with device 1 on another."""
    return Placement(
        client_nodes=(0, 0, 1),
        device_nodes=(0, 1),
        local_proxies=(0, 0, 1),
        ranks=ranks,
        planner=Coarse(),
        num_sync_groups=2,
    )


def told(steps: list) -> list[int]:
    """Endpoints that hear of a death."""
    return [s.endpoint for s in steps if isinstance(s, Send) and isinstance(s.record, Died)]


def test_a_death_is_told_to_the_clients_of_the_node_and_to_all_devices_but_not_to_the_dead():
    protocol = ProxyProtocol(0, placement(), 1 << 20)
    steps = protocol.on_dead(1, "worker 1 died")
    assert told(steps) == [0, 4]
    assert [s.record for s in steps if isinstance(s, Send)] == [Died(1, "worker 1 died")] * 2


def test_a_death_is_told_once_however_often_it_is_heard():
    protocol = ProxyProtocol(0, placement(), 1 << 20)
    protocol.on_dead(4, "device 1 died")
    assert protocol.on_dead(4, "device 1 died") == []
    assert protocol.on_record(Died(4, "somebody else saw it too")) == []
    assert protocol.dead == {4: "device 1 died"}


def test_what_another_device_saw_is_passed_on_to_the_clients_here():
    protocol = ProxyProtocol(0, placement(), 1 << 20)
    assert told(protocol.on_record(Died(3, "device 0 of the other node died"))) == [0, 1, 4]


def test_nobody_waits_for_the_dead_to_leave():
    protocol = ProxyProtocol(0, placement(), 1 << 20)
    protocol.on_record(Leave(0))
    assert Finished() not in protocol.on_dead(1, "worker 1 died")
    assert Finished() in protocol.on_dead(2, "worker 2 died")


def test_a_rank_with_both_roles_dies_as_both():
    protocol = ProxyProtocol(0, placement(ranks=(0, 1, 2, 3, 2)), 1 << 20)
    protocol.on_record(Leave(0))
    protocol.on_record(Leave(1))
    steps = protocol.on_dead(2, "worker 2 died")
    assert told(steps) == [0, 1]  # not the device in the dead process
    assert Finished() in steps
