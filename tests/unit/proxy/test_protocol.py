import pytest

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Allocate,
    Allocated,
    Deregister,
    Descriptor,
    Echo,
    Failed,
    Free,
    Join,
    Joined,
    Leave,
    Located,
    Probe,
    Push,
    Query,
    Ready,
    Register,
    Registered,
    Status,
    Table,
    Tables,
)
from coarse.proxy.instructions import Finished, Reduce, Region, Reserve, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.strategy.builtin import Coarse

FIRST_DEVICE = 2
"""Endpoints: clients 0 and 1, then devices 0 and 1."""
KEY = 6
"""An even key: in place, device 0 is the first of its node."""
ROW = (0, 0, 0, 1 << 20)


def placement(num_nodes=1, collective="in_place"):
    nodes = (0, num_nodes - 1)
    return Placement(
        client_nodes=nodes,
        device_nodes=nodes,
        local_proxies=(0, 1),
        ranks=(0, 1, 2, 3),
        planner=Coarse(collective=collective),
        num_sync_groups=2,
    )


def proxy(device=0, num_nodes=1, capacity_bytes=1 << 16):
    """A device that has all tables of epoch 1."""
    protocol = ProxyProtocol(device, placement(num_nodes), capacity_bytes)
    for client in range(2):
        protocol.on_record(Table(client, 1, ROW))
    return protocol


def descriptor(num_elements=4, shape=None, op=Op.AVERAGE):
    extents = (num_elements,) if shape is None else shape
    return Descriptor("w", int(DType.FLOAT32), int(op), extents, 3)


def located(client, what=None):
    return Located(client, KEY, 1, what or descriptor(), client, 4096 * client)


def push(client, round_=0, present=True):
    return Push(client, KEY, 1, round_, 0, 1, present)


def ready_proxy():
    """A device at which both clients have registered the key."""
    protocol = proxy()
    for client in range(2):
        protocol.on_record(located(client))
    return protocol


def sent(steps, kind):
    """(endpoint, record) of every record of a kind."""
    return [(s.endpoint, s.record) for s in steps if type(s) is Send and type(s.record) is kind]


def test_tables_are_complete_with_the_last_and_told_to_own_clients():
    protocol = ProxyProtocol(0, placement(), 1 << 16)
    assert protocol.on_record(Table(0, 1, ROW)) == [Send(FIRST_DEVICE + 1, Table(0, 1, ROW))]
    assert protocol.on_record(Table(1, 1, ROW)) == [Send(0, Tables(1, (ROW, ROW)))]


def test_a_registration_makes_a_region_real_before_anybody_hears_of_it():
    protocol = proxy()
    [reserve] = protocol.on_record(Register(0, KEY, 1, descriptor(), -1, -1))
    assert reserve == Reserve(reserve.request, 0, 16)
    steps = protocol.on_reserved(reserve.request, "")
    assert sent(steps, Registered) == [(0, Registered(KEY, 1, 0, 0))]
    assert sent(steps, Located) == [(FIRST_DEVICE + 1, Located(0, KEY, 1, descriptor(), 0, 0))]
    assert protocol.used_bytes == 64  # whole lines of the cache


def test_a_region_that_cannot_be_made_real_is_free_again_and_the_key_fails_everywhere():
    protocol = proxy()
    [reserve] = protocol.on_record(Register(0, KEY, 1, descriptor(), -1, -1))
    steps = protocol.on_reserved(reserve.request, "no memory")
    assert protocol.used_bytes == 0
    told = dict(sent(steps, Failed))
    assert sorted(told) == [0, FIRST_DEVICE + 1]
    assert told[0].error == "CapacityError"
    assert "no memory" in told[0].text
    assert "'w' needs 16 bytes" in told[0].text


def test_a_failure_told_by_another_device_reaches_those_who_registered_here():
    protocol = proxy()
    protocol.on_record(Register(0, KEY, 1, descriptor(), 0, 0))
    failed = Failed(KEY, 1, "CapacityError", "text")
    assert protocol.on_record(failed) == [Send(0, failed)]
    assert protocol.on_record(failed) == []


def test_the_regions_of_a_key_are_free_once_all_clients_have_forgotten_it():
    protocol = proxy()
    [reserve] = protocol.on_record(Register(0, KEY, 1, descriptor(), -1, -1))
    protocol.on_reserved(reserve.request, "")
    protocol.on_record(located(1))
    forgets = [Deregister(0, KEY, 0, 0, 0), Deregister(1, KEY, 1, 4096, 1)]  # the second's region is the other device's
    assert protocol.on_record(forgets[0]) == [Send(FIRST_DEVICE + 1, forgets[0])]
    assert protocol.used_bytes == 64
    assert protocol.on_record(forgets[1]) == []  # its own device has passed it on
    assert protocol.used_bytes == 0
    assert not protocol._sync.keys


def test_a_key_may_be_forgotten_before_anybody_here_has_heard_of_it():
    protocol = proxy()
    for client in range(2):
        protocol.on_record(Deregister(client, KEY, -1, -1, client))
    assert not protocol._sync.keys


def test_a_kept_region_is_registered_without_new_memory():
    steps = proxy().on_record(Register(0, KEY, 1, descriptor(), 1, 512))
    assert sent(steps, Registered) == [(0, Registered(KEY, 1, 1, 512))]
    assert not [step for step in steps if type(step) is Reserve]


def test_a_key_is_reduced_once_all_have_pushed_and_then_told():
    protocol = ready_proxy()
    assert protocol.on_record(push(1)) == []
    [reduce] = protocol.on_record(push(0))
    regions = (Region(0, 0), Region(1, 4096))
    assert isinstance(reduce, Reduce)
    assert (reduce.sources, reduce.targets) == (regions, regions)
    assert (reduce.divisor, reduce.num_elements, reduce.priority) == (2, 4, 3)
    assert sent(protocol.on_reduced(reduce), Ready) == [
        (client, Ready(KEY, 0, 1, True)) for client in range(2)
    ]


def test_every_result_is_a_version_of_its_key_however_many_came_before():
    protocol = ready_proxy()
    for version in range(1, 4):
        protocol.on_record(push(0))
        [reduce] = protocol.on_record(push(1))
        assert protocol.versions.current(KEY) == version - 1
        protocol.on_reduced(reduce)
        assert protocol.versions.current(KEY) == version


def test_what_comes_before_the_last_routing_table_waits_for_it():
    protocol = ProxyProtocol(0, placement(), 1 << 16)
    protocol.on_record(Table(0, 1, ROW))
    for client in range(2):
        assert protocol.on_record(located(client)) == []
        assert protocol.on_record(push(client)) == []
    assert [type(step) for step in protocol.on_record(Table(1, 1, ROW))].count(Reduce) == 1


def test_pushes_that_come_before_the_registrations_wait_for_them():
    protocol = proxy()
    assert protocol.on_record(push(0)) + protocol.on_record(push(1)) == []
    assert protocol.on_record(located(1)) == []
    assert [type(step) for step in protocol.on_record(located(0))] == [Reduce]


def test_what_a_client_does_not_contribute_is_no_source_but_it_gets_the_result():
    protocol = ready_proxy()
    protocol.on_record(push(0, present=False))
    [reduce] = protocol.on_record(push(1))
    assert reduce.sources == (Region(1, 4096),)
    assert len(reduce.targets) == 2


def test_a_push_before_the_last_result_came_is_refused():
    protocol = ready_proxy()
    protocol.on_record(push(0))
    [(endpoint, failed)] = sent(protocol.on_record(push(0)), Failed)
    assert (endpoint, failed.error) == (0, "InFlightError")


@pytest.mark.parametrize(
    "other", [descriptor(5), descriptor(shape=(2, 2)), descriptor(op=Op.SUM)], ids=str
)
def test_a_disagreement_is_told_to_those_who_registered_here_before_and_after(other):
    protocol = proxy()
    protocol.on_record(Register(0, KEY, 1, descriptor(), 0, 0))
    [(endpoint, failed)] = sent(protocol.on_record(located(1, other)), Failed)
    assert (endpoint, failed.error) == (0, "MismatchError")
    assert "rank 0" in failed.text
    assert "rank 1" in failed.text
    late = protocol.on_record(Register(1, KEY, 1, other, 1, 0))
    assert (1, failed) in sent(late, Failed)


def test_a_joined_client_is_not_waited_for_until_the_round_is_over():
    protocol = ready_proxy()
    protocol.on_record(push(0))
    [reduce] = [step for step in protocol.on_record(Join(1, 0, 0)) if type(step) is Reduce]
    assert reduce.sources == reduce.targets == (Region(0, 0),)
    assert reduce.divisor == 2
    protocol.on_reduced(reduce)
    protocol.on_record(Join(0, 0, 0))
    assert protocol.on_record(push(0, round_=1)) == []


def test_device_0_alone_says_who_joined_last():
    first, second = proxy(0), proxy(1)
    for protocol in (first, second):
        protocol.on_record(Join(1, 0, 0))
    assert [end for end, _ in sent(first.on_record(Join(0, 0, 0)), Joined)] == [FIRST_DEVICE + 1, 0]
    assert not sent(second.on_record(Join(0, 0, 0)), Joined)
    assert second.on_record(Joined(0, 0)) == [Send(1, Joined(0, 0))]


def test_a_late_join_of_an_old_round_excuses_nobody():
    protocol = ready_proxy()
    protocol.on_record(Joined(1, 0))
    protocol.on_record(Join(1, 0, 0))
    assert protocol.on_record(push(0, round_=1)) == []


def test_a_join_that_overtakes_the_end_of_the_round_before_still_counts():
    protocol = ready_proxy()
    protocol.on_record(Join(1, 1, 0))
    protocol.on_record(Joined(1, 0))
    assert [type(step) for step in protocol.on_record(push(0, round_=1))] == [Reduce]


def test_on_two_nodes_an_answer_about_missing_clients_goes_by_the_asker_s_own_device():
    near, far = proxy(0, num_nodes=2), proxy(1, num_nodes=2)
    steps = near.on_record(Query(0, KEY))
    assert sent(steps, Query) == [(FIRST_DEVICE + 1, Query(0, KEY))]
    assert sent(steps, Status) == [(0, Status(0, KEY, 0, (0, 1)))]
    answer = Status(0, KEY, 1, (0, 1))
    assert far.on_record(Query(0, KEY)) == [Send(FIRST_DEVICE, answer)]
    assert near.on_record(answer) == [Send(0, answer)]


def test_memory_is_lent_and_taken_back():
    protocol = proxy()
    [reserve] = protocol.on_record(Allocate(1, 8, 1000))
    assert protocol.on_reserved(reserve.request, "") == [Send(1, Allocated(0, 8, 0, ""))]
    assert protocol.used_bytes == 1024
    assert protocol.on_record(Free(0)) == []
    assert protocol.used_bytes == 0


def test_too_much_memory_is_refused_with_what_there_is():
    [answer] = proxy(capacity_bytes=4096).on_record(Allocate(1, 8, 5000))
    assert answer.record.offset == -1
    assert "4096 bytes free of the 5000 wanted" in answer.record.text


def test_a_probe_is_echoed():
    assert proxy().on_record(Probe(1, 77)) == [Send(1, Echo(0, 77))]


def test_the_service_ends_once_all_clients_have_left():
    protocol = proxy()
    assert Finished() not in protocol.on_record(Leave(1))
    assert Finished() in protocol.on_record(Leave(0))


# --- devices whose keys have a range of their own: a GPU's memory


def on_gpu() -> ProxyProtocol:
    """A device whose keys lie from byte 2^16 on."""
    protocol = ProxyProtocol(0, placement(1), 1 << 16, (1 << 16, 4096))
    for client in range(2):
        protocol.on_record(Table(client, 1, ROW))
    return protocol


def test_a_key_s_region_is_on_the_gpu_and_other_memory_is_not():
    protocol = on_gpu()
    [reserve] = protocol.on_record(Register(0, KEY, 1, descriptor(), -1, -1))
    assert reserve.offset == 1 << 16
    steps = protocol.on_reserved(reserve.request, "")
    assert sent(steps, Registered) == [(0, Registered(KEY, 1, 0, 1 << 16))]
    [other] = protocol.on_record(Allocate(1, 8, 1000))
    assert other.offset == 0
    [measured] = protocol.on_record(Allocate(1, 9, 1000, is_of_key=True))
    assert measured.offset > 1 << 16
    protocol.on_reserved(measured.request, "")
    assert protocol.on_record(Free(measured.offset)) == []


def test_a_key_that_the_gpu_has_no_room_for_fails_at_its_registration():
    steps = on_gpu().on_record(Register(0, KEY, 1, descriptor(2000), -1, -1))
    failed = dict(sent(steps, Failed))[0]
    assert failed.error == "CapacityError"
    assert "'w' needs 8000 bytes but device 0 has 4096 bytes free of the 8000 wanted; raise" in failed.text
