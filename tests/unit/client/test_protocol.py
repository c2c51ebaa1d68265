import pytest

from coarse.client.protocol import ClientProtocol, Phase, ToDevice
from coarse.client.refusals import missing_clients, silent_devices
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement, RoutingTable
from coarse.protocol.records import (
    Descriptor,
    Died,
    Echo,
    Failed,
    Forget,
    Join,
    Joined,
    JoinFailed,
    Push,
    Query,
    Ready,
    Register,
    Registered,
    Status,
    Table,
    Tables,
    key_of,
)

PLACE = Placement(
    client_nodes=(0, 0, 0),
    device_nodes=(0, 0),
    local_proxies=(0, 1, 1),
    ranks=(0, 1, 2, 3, 4),
    collective="in_place",
    num_sync_groups=2,
)
ROW = (100, 0, 1, 64)
"""Threshold, latency proxy, bandwidth proxy, partition size."""


def descriptor(num_elements=100, name="w"):
    return Descriptor(name, int(DType.FLOAT32), int(Op.SUM), (num_elements,), 0)


def client_in_epoch(epoch=1, client=1):
    machine = ClientProtocol(client, PLACE)
    machine.on_record(Tables(epoch, (ROW,) * 3))
    return machine


def registered(num_elements=100):
    """A client with one key whose region lies at byte 4096 of device 1."""
    machine = client_in_epoch()
    machine.register(descriptor(num_elements))
    machine.on_record(Registered(key_of("w"), 1, 1, 4096))
    return machine, key_of("w")


def test_a_profiled_table_goes_to_the_local_proxy_for_the_next_epoch():
    machine = client_in_epoch(epoch=4)
    table = RoutingTable(threshold_bytes=9, latency_proxy=0, bandwidth_proxy=1, partition_bytes=64)
    assert machine.on_profiled(table) == [ToDevice(1, Table(1, 5, 9, 0, 1, 64))]
    assert machine.epoch == 4


@pytest.mark.parametrize(("num_elements", "device"), [(25, 0), (26, 1)])
def test_a_key_is_registered_at_the_proxy_that_its_size_asks_for(num_elements, device):
    machine = client_in_epoch()
    [sent] = machine.register(descriptor(num_elements))
    assert sent.device == device
    assert sent.record == Register(1, key_of("w"), 1, descriptor(num_elements), -1, -1)
    assert machine.keys[key_of("w")].phase is Phase.REGISTERING


def test_a_push_is_announced_where_each_shard_is_synchronised():
    machine, key = registered()
    machine.begin(key)
    sent = machine.announce(key, 0, 6, present=True)
    shards = {d: (push.first, push.last) for d, push in sent}
    assert sorted(shards) == [0, 1]
    assert sorted(shards.values()) == [(0, 3), (3, 6)]
    assert all(push == Push(1, key, 1, 0, *shards[d], True) for d, push in sent)


def test_pieces_of_a_push_announce_every_shard_once():
    machine, key = registered()
    machine.begin(key)
    pieces = [machine.announce(key, shard, shard + 1, present=True) for shard in range(6)]
    assert [len(sent) for sent in pieces] == [1] * 6
    assert [sent[0].record.first for sent in pieces] == list(range(6))


def test_a_result_is_there_once_all_shards_are_in_whatever_order():
    machine, key = registered()
    machine.begin(key)
    machine.on_record(Ready(key, 3, 6, False))
    assert machine.in_flight == {key}
    assert not machine.is_quiet
    machine.on_record(Ready(key, 0, 3, True))
    state = machine.keys[key]
    assert (state.phase, state.version, state.present) == (Phase.IDLE, 1, True)
    assert machine.is_quiet


def test_a_result_to_which_nobody_contributed_says_so():
    machine, key = registered()
    machine.begin(key)
    machine.on_record(Ready(key, 0, 6, False))
    assert not machine.keys[key].present


def test_in_a_new_epoch_a_key_keeps_its_region_and_version():
    machine, key = registered()
    machine.begin(key)
    machine.on_record(Ready(key, 0, 6, True))
    machine.on_record(Tables(2, ((0, 0, 0, 400),) * 3))
    [sent] = machine.register(descriptor())
    assert (sent.record.epoch, sent.record.device, sent.record.offset) == (2, 1, 4096)
    assert machine.keys[key].version == 1
    assert machine.keys[key].plan.num_shards == 1


def test_a_region_of_another_size_is_never_kept():
    machine, _ = registered(100)
    machine.on_record(Tables(2, (ROW,) * 3))
    [sent] = machine.register(descriptor(200))
    assert (sent.record.device, sent.record.offset) == (-1, -1)


def test_a_failure_ends_a_key_but_not_one_of_a_later_epoch():
    machine, key = registered()
    machine.begin(key)
    machine.on_record(Failed(key, 1, "MismatchError", "text"))
    assert machine.keys[key].phase is Phase.FAILED
    machine.on_record(Tables(2, (ROW,) * 3))
    machine.register(descriptor())
    machine.on_record(Failed(key, 1, "MismatchError", "late"))
    assert machine.keys[key].failed is None


def test_after_a_round_of_joins_pushes_say_the_next_round():
    machine, key = registered()
    assert machine.join() == [ToDevice(1, Join(1, 0, 0))]
    assert machine.last_joined is None
    machine.on_record(Joined(2, 0))
    assert machine.last_joined == 2
    machine.begin(key)
    assert machine.announce(key, 0, 1, present=True)[0].record.round == 1
    assert machine.join() == [ToDevice(1, Join(1, 1, 0))]


def test_a_round_that_fails_is_kept_for_whoever_joins_later():
    machine, _ = registered()
    machine.on_record(JoinFailed(2, "text"))
    machine.join()
    assert machine.join_failed == JoinFailed(2, "text")


def test_a_forgotten_name_is_a_new_key_and_its_region_is_given_back():
    machine, key = registered()
    assert machine.forget("w") == [ToDevice(1, Forget(1, key, 1, 4096, 1))]
    assert machine.key("w") != key
    [sent] = machine.register(descriptor(7))
    assert (sent.record.key, sent.record.device) == (machine.key("w"), -1)
    keys = {machine.key("w")}
    for _ in range(5):
        machine.forget("w")
        keys.add(machine.key("w"))
    assert len(keys | {key}) == 7


def test_a_name_that_was_never_used_or_has_failed_gives_no_region_back():
    machine, key = registered()
    assert machine.forget("unused") == [ToDevice(1, Forget(1, key_of("unused"), -1, -1, 1))]
    machine.on_record(Failed(key, 1, "MismatchError", "text"))
    assert machine.forget("w") == [ToDevice(1, Forget(1, key, -1, -1, 1))]
    machine.on_record(Failed(key, 1, "MismatchError", "from another device"))  # late


def test_who_is_missing_is_asked_once_and_answered_by_every_device():
    machine, key = registered()
    assert machine.ask_who_is_missing(key) == [ToDevice(1, Query(1, key))]
    machine.on_record(Status(1, key, 1, (2,)))
    assert not machine.have_all_answered(key)
    machine.on_record(Status(1, key, 0, ()))
    assert machine.have_all_answered(key)
    assert machine.missing[key] == {1: (2,), 0: ()}


def answered(answers, *, is_waiting=True):
    """Client 1 of three, after devices have said whom each waits for."""
    machine, key = registered()
    if is_waiting:
        machine.begin(key)
    machine.ask_who_is_missing(key)
    for device, clients in answers.items():
        machine.on_record(Status(1, key, device, clients))
    return missing_clients(machine, key), silent_devices(machine, key)


def test_a_device_that_names_the_asker_after_its_push_has_done_its_shards():
    assert answered({0: (0, 1, 2), 1: (2,)}) == ((2,), ())
    assert answered({0: (0, 1, 2), 1: ()}) == ((), ())


def test_a_name_that_the_asker_has_not_pushed_lacks_the_asker_too():
    assert answered({0: (0, 1, 2), 1: (0, 1, 2)}, is_waiting=False) == ((0, 1, 2), ())


def test_a_device_that_does_not_answer_is_told_apart_from_ranks_that_have_not_pushed():
    assert answered({1: (0, 1, 2)}) == ((), (0,))
    assert answered({1: (0,)}) == ((0,), (0,))


def test_where_the_own_device_is_silent_the_others_were_not_asked():
    machine, key = registered()
    assert machine.ask_who_is_missing(key)[0].device == 1
    assert answered({}) == ((), (1,))


def test_answers_are_kept_by_their_token():
    machine = client_in_epoch()
    first, second = machine.next_token(), machine.next_token()
    machine.on_record(Echo(0, second))
    assert first not in machine.answers
    assert machine.answers[second] == Echo(0, second)


def test_the_first_death_is_the_one_that_is_told():
    machine = client_in_epoch()
    machine.on_record(Died(3, "first"))
    machine.on_record(Died(4, "second"))
    assert machine.died == Died(3, "first")
