import pytest

from coarse.client.protocol import ClientProtocol, KeyPhase, ToDevice
from coarse.errors import MismatchError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Deregister,
    Descriptor,
    Died,
    Echo,
    Failed,
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
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import RoutingTable

PLACE = Placement(
    client_nodes=(0, 0, 0),
    device_nodes=(0, 0),
    local_proxies=(0, 1, 1),
    ranks=(0, 1, 2, 3, 4),
    planner=Coarse(),
    num_sync_groups=2,
)
ROW = (100, 0, 1, 64)
"""Threshold, latency proxy, bandwidth proxy, partition size."""


def descriptor(num_elements=100, name="w"):
    return Descriptor(name, int(DType.FLOAT32), int(Op.SUM), (num_elements,), 0)


def client_in_epoch(epoch=1, client=1):
    protocol = ClientProtocol(client, PLACE)
    protocol.on_record(Tables(epoch, (ROW,) * 3))
    return protocol


def registered(num_elements=100):
    """A client with one key whose region lies at byte 4096 of device 1."""
    protocol = client_in_epoch()
    protocol.register(descriptor(num_elements))
    protocol.on_record(Registered(key_of("w"), 1, 1, 4096))
    return protocol, key_of("w")


def test_a_profiled_table_goes_to_the_local_proxy_for_the_next_epoch():
    protocol = client_in_epoch(epoch=4)
    table = RoutingTable(threshold_bytes=9, latency_proxy=0, bandwidth_proxy=1, partition_bytes=64)
    assert protocol.on_profiled(table) == [ToDevice(1, Table(1, 5, (9, 0, 1, 64)))]
    assert protocol.epoch == 4


@pytest.mark.parametrize(("num_elements", "device"), [(25, 0), (26, 1)])
def test_a_key_is_registered_at_the_proxy_that_its_size_asks_for(num_elements, device):
    protocol = client_in_epoch()
    [sent] = protocol.register(descriptor(num_elements))
    assert sent.device == device
    assert sent.record == Register(1, key_of("w"), 1, descriptor(num_elements), -1, -1)
    assert protocol.keys[key_of("w")].phase is KeyPhase.REGISTERING


def test_a_push_is_announced_where_each_shard_is_synchronised():
    protocol, key = registered()
    protocol.begin(key)
    sent = protocol.announce(key, 0, 6, present=True)
    shards = {d: (push.first, push.last) for d, push in sent}
    assert sorted(shards) == [0, 1]
    assert sorted(shards.values()) == [(0, 3), (3, 6)]
    assert all(push == Push(1, key, 1, 0, *shards[d], True) for d, push in sent)


def test_pieces_of_a_push_announce_every_shard_once():
    protocol, key = registered()
    protocol.begin(key)
    pieces = [protocol.announce(key, shard, shard + 1, present=True) for shard in range(6)]
    assert [len(sent) for sent in pieces] == [1] * 6
    assert [sent[0].record.first for sent in pieces] == list(range(6))


def test_a_result_is_there_once_all_shards_are_in_whatever_order():
    protocol, key = registered()
    protocol.begin(key)
    protocol.on_record(Ready(key, 3, 6, False))
    assert protocol.in_flight == {key}
    assert not protocol.is_quiet
    protocol.on_record(Ready(key, 0, 3, True))
    state = protocol.keys[key]
    assert (state.phase, state.version, state.present) == (KeyPhase.IDLE, 1, True)
    assert protocol.is_quiet


def test_a_result_to_which_nobody_contributed_says_so():
    protocol, key = registered()
    protocol.begin(key)
    protocol.on_record(Ready(key, 0, 6, False))
    assert not protocol.keys[key].present


def test_in_a_new_epoch_a_key_keeps_its_region_and_version():
    protocol, key = registered()
    protocol.begin(key)
    protocol.on_record(Ready(key, 0, 6, True))
    protocol.on_record(Tables(2, ((0, 0, 0, 400),) * 3))
    [sent] = protocol.register(descriptor())
    assert (sent.record.epoch, sent.record.device, sent.record.offset) == (2, 1, 4096)
    assert protocol.keys[key].version == 1
    assert protocol.keys[key].plan.num_shards == 1


def test_a_region_of_another_size_is_never_kept():
    protocol, _ = registered(100)
    protocol.on_record(Tables(2, (ROW,) * 3))
    [sent] = protocol.register(descriptor(200))
    assert (sent.record.device, sent.record.offset) == (-1, -1)


def test_a_failure_ends_a_key_but_not_one_of_a_later_epoch():
    protocol, key = registered()
    protocol.begin(key)
    protocol.on_record(Failed(key, 1, "MismatchError", "text"))
    assert protocol.keys[key].phase is KeyPhase.FAILED
    protocol.on_record(Tables(2, (ROW,) * 3))
    protocol.register(descriptor())
    protocol.on_record(Failed(key, 1, "MismatchError", "late"))
    assert protocol.keys[key].failed is None


def test_a_failure_that_comes_once_a_result_is_whole_is_of_the_next_push():
    """A rank that has its result may use the name anew, for another shape, before this one has taken its own."""
    protocol, key = registered()
    protocol.begin(key, is_claimed=True)
    protocol.on_record(Ready(key, 0, protocol.keys[key].plan.num_shards, True))
    protocol.on_record(Failed(key, 1, "MismatchError", "another shape"))
    assert protocol.is_complete(key)
    assert protocol.take(key)
    for again in (protocol.take, protocol.begin):
        with pytest.raises(MismatchError, match="another shape"):
            again(key)


def test_after_a_round_of_joins_pushes_say_the_next_round():
    protocol, key = registered()
    assert protocol.join() == [ToDevice(1, Join(1, 0, 0))]
    assert protocol.last_joined is None
    protocol.on_record(Joined(2, 0))
    assert protocol.last_joined == 2
    protocol.begin(key)
    assert protocol.announce(key, 0, 1, present=True)[0].record.round == 1
    assert protocol.join() == [ToDevice(1, Join(1, 1, 0))]


def test_a_round_that_fails_is_kept_for_whoever_joins_later():
    protocol, _ = registered()
    protocol.on_record(JoinFailed(2, "text"))
    protocol.join()
    assert protocol.join_failed == JoinFailed(2, "text")


def test_a_forgotten_name_is_a_new_key_and_its_region_is_given_back():
    protocol, key = registered()
    assert protocol.deregister("w") == [ToDevice(1, Deregister(1, key, 1, 4096, 1))]
    assert protocol.key("w") != key
    [sent] = protocol.register(descriptor(7))
    assert (sent.record.key, sent.record.device) == (protocol.key("w"), -1)
    protocol.on_record(Registered(protocol.key("w"), 1, 0, 64))
    keys = {protocol.key("w")}
    for _ in range(5):
        protocol.deregister("w")
        keys.add(protocol.key("w"))
    assert len(keys | {key}) == 7


def test_a_name_that_was_never_used_or_has_failed_gives_no_region_back():
    protocol, key = registered()
    assert protocol.deregister("unused") == [ToDevice(1, Deregister(1, key_of("unused"), -1, -1, 1))]
    protocol.on_record(Failed(key, 1, "MismatchError", "text"))
    assert protocol.deregister("w") == [ToDevice(1, Deregister(1, key, -1, -1, 1))]
    protocol.on_record(Failed(key, 1, "MismatchError", "from another device"))  # late


def test_who_is_missing_is_asked_once_and_answered_by_every_device():
    protocol, key = registered()
    assert protocol.ask_who_is_missing(key) == [ToDevice(1, Query(1, key))]
    protocol.on_record(Status(1, key, 1, (2,)))
    assert not protocol.have_all_answered(key)
    protocol.on_record(Status(1, key, 0, ()))
    assert protocol.have_all_answered(key)
    assert protocol.missing[key] == {1: (2,), 0: ()}


def answered(answers, *, is_waiting=True):
    """Client 1 of three, after devices have said whom each waits for."""
    protocol, key = registered()
    if is_waiting:
        protocol.begin(key)
    protocol.ask_who_is_missing(key)
    for device, clients in answers.items():
        protocol.on_record(Status(1, key, device, clients))
    return protocol.missing_clients(key), protocol.silent_devices(key)


def test_a_device_that_names_the_asker_after_its_push_has_done_its_shards():
    assert answered({0: (0, 1, 2), 1: (2,)}) == ((2,), ())
    assert answered({0: (0, 1, 2), 1: ()}) == ((), ())


def test_a_name_that_the_asker_has_not_pushed_lacks_the_asker_too():
    assert answered({0: (0, 1, 2), 1: (0, 1, 2)}, is_waiting=False) == ((0, 1, 2), ())


def test_a_device_that_does_not_answer_is_told_apart_from_ranks_that_have_not_pushed():
    assert answered({1: (0, 1, 2)}) == ((), (0,))
    assert answered({1: (0,)}) == ((0,), (0,))


def test_where_the_own_device_is_silent_the_others_were_not_asked():
    protocol, key = registered()
    assert protocol.ask_who_is_missing(key)[0].device == 1
    assert answered({}) == ((), (1,))


def test_answers_are_kept_by_their_token():
    protocol = client_in_epoch()
    first, second = protocol.next_token(), protocol.next_token()
    protocol.on_record(Echo(0, second))
    assert first not in protocol.answers
    assert protocol.answers[second] == Echo(0, second)


def test_the_first_death_is_the_one_that_is_told():
    protocol = client_in_epoch()
    protocol.on_record(Died(3, "first"))
    protocol.on_record(Died(4, "second"))
    assert protocol.died == Died(3, "first")
