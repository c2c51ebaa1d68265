"""Several threads of one worker that wait at once, and looking without waiting: real rings, one process."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from coarse.client import link as link_module
from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientProtocol, KeyPhase
from coarse.errors import CoarseError, DeadRankError, InFlightError, MismatchError, StallError
from coarse.protocol.clock import WallClock
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Descriptor,
    Died,
    Echo,
    Failed,
    Joined,
    Leave,
    Push,
    Ready,
    Registered,
    Tables,
    key_of,
)
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import RoutingTable
from coarse.transport.mailbox import Mailbox, control_bytes

FOR_EVER_S = 30.0
NUM_ROUNDS = 200
PLACE = Placement(
    client_nodes=(0,),
    device_nodes=(0,),
    local_proxies=(0,),
    ranks=(0, 1),
    planner=Coarse(),
    num_sync_groups=1,
)
W = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4,), 0)


class Wire:
    """One client's link, and the mailbox of its device."""

    def __init__(self) -> None:
        control = memoryview(bytearray(control_bytes(2)))
        run = f"test-link-{os.getpid()}"
        self.mailbox = Mailbox(0, 2, (1,), control, run)
        self.device = Mailbox(1, 2, (0,), control, run)
        self.protocol = ClientProtocol(0, PLACE)
        self.protocol.on_record(Tables(1, ((0, 0, 0, 1 << 20),)))
        self.link = DeviceLink(self.protocol, PLACE, self.mailbox, WallClock(), FOR_EVER_S)

    def say(self, *records) -> None:
        """The device sends records."""
        for record in records:
            self.device.send(0, record)
        self.device.ring_bells()

    def registered(self) -> Client:
        """A client with one key."""
        self.protocol.register(W)
        self.protocol.on_record(Registered(key_of("w"), 1, 0, 0))
        return Client(self.link, {})


@pytest.fixture
def wire(monkeypatch) -> Iterator[Wire]:
    monkeypatch.setattr(link_module, "_LONGEST_SLEEP_S", FOR_EVER_S)  # a lost wake-up is seen to hang
    made = Wire()
    yield made
    made.mailbox.close()
    made.device.close()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("looks_too", [False, True])
def test_no_thread_costs_another_its_wake_up(wire, num_threads, looks_too):
    """Thread i waits for tokens i, i + n, ...; tokens come one at a time, the next when the last was seen."""
    answers = wire.protocol.answers
    seen = threading.Semaphore(0)
    is_over = threading.Event()

    def wait(mine: int) -> None:
        for token in range(mine, NUM_ROUNDS, num_threads):
            assert wire.link.wait_until(lambda token=token: token in answers)
            seen.release()

    def look() -> None:
        while not is_over.is_set():
            with wire.link.lock:
                wire.link.look()

    threads = [threading.Thread(target=wait, args=(index,), daemon=True) for index in range(num_threads)]
    threads += [threading.Thread(target=look, daemon=True)] * looks_too
    for thread in threads:
        thread.start()
    for token in range(NUM_ROUNDS):
        wire.say(Echo(0, token))
        assert seen.acquire(timeout=FOR_EVER_S / 2), f"nobody was woken for {token}"
    is_over.set()
    for thread in threads:
        thread.join(FOR_EVER_S / 2)
        assert not thread.is_alive()


def test_a_thread_that_goes_on_hands_its_place_at_the_doorbell_over(wire):
    answers = wire.protocol.answers
    first = threading.Thread(target=wire.link.wait_until, args=(lambda: 1 in answers,), daemon=True)
    second = threading.Thread(target=wire.link.wait_until, args=(lambda: 2 in answers,), daemon=True)
    first.start()
    while not wire.link._is_at_bell:
        os.sched_yield()
    second.start()
    while not wire.link._num_listeners:
        os.sched_yield()
    for token, thread in ((1, first), (2, second)):
        wire.say(Echo(0, token))
        thread.join(FOR_EVER_S / 2)
        assert not thread.is_alive()
    assert wire.link._num_listeners == 0  # nobody is woken in vain from now on


# --- requests that cannot be sent


def test_a_registration_that_cannot_be_sent_leaves_the_name_free(wire, monkeypatch):
    client = wire.registered()
    monkeypatch.setattr(wire.mailbox, "post", refuse)
    for descriptor in (W._replace(name="new"), W):
        wire.protocol.epoch = 2
        with pytest.raises(CoarseError, match="cannot be sent"):
            client.push(descriptor, np.zeros(4, np.float32))
    assert list(wire.protocol.keys) == [key_of("w")]
    assert wire.protocol.keys[key_of("w")].epoch == 1


def refuse(peer: int, frame: bytes) -> None:
    raise CoarseError("cannot be sent")


# --- looking


def test_a_result_is_complete_when_it_has_come_and_not_before(wire):
    client, key = wire.registered(), key_of("w")
    wire.protocol.begin(key)
    assert not client.is_complete(key)
    wire.say(Ready(key, 0, 1, True))
    assert client.is_complete(key)


def test_a_key_that_has_failed_before_any_result_is_complete_for_wait_raises(wire):
    client, key = wire.registered(), key_of("w")
    wire.protocol.begin(key)
    wire.say(Failed(key, 1, "MismatchError", "text"))
    assert client.is_complete(key)
    with pytest.raises(MismatchError):
        client.take(key, np.zeros(4, np.float32), None)


def test_a_result_that_a_dead_rank_owes_is_complete_for_wait_raises(wire):
    client, key = wire.registered(), key_of("w")
    wire.protocol.begin(key)
    wire.say(Died(1, "text"))
    assert client.is_complete(key)


def test_a_process_that_ends_is_seen_without_waiting(wire):
    client, key = wire.registered(), key_of("w")
    wire.protocol.begin(key)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        descriptor = os.pidfd_open(process.pid)
        wire.mailbox.watch(descriptor, 1)
        assert not client.is_complete(key)
        with closing(process.stdin):
            process.stdin.write(b"\n")
        process.wait()
    assert client.is_complete(key)


def test_who_waits_is_told_of_a_death_that_others_have_seen(wire):
    wire.link.stall_timeout_s = 0.0
    wire.say(Died(4, "worker 2 (MPI rank 4) died"))
    with pytest.raises(DeadRankError, match=r"worker 2 \(MPI rank 4\) died") as error:
        wire.link.wait_until(lambda: False)
    assert error.value.rank == 4


def test_of_a_peer_that_ended_because_another_died_the_other_is_named(wire, monkeypatch):
    def is_told_and_left_alone(timeout_s):
        wire.say(Died(4, "worker 2 (MPI rank 4) died"))
        return [1]

    monkeypatch.setattr(wire.mailbox, "sleep", is_told_and_left_alone)
    with pytest.raises(DeadRankError, match=r"worker 2 \(MPI rank 4\) died") as error:
        wire.link.wait_until(lambda: False)
    assert error.value.rank == 4


def test_who_ends_for_a_death_tells_its_node_of_that_death_first(wire):
    wire.say(Died(4, "worker 2 (MPI rank 4) died"))
    wire.link.hand_on_death()
    assert list(wire.device.records()) == []
    wire.link.look()
    wire.link.hand_on_death()
    assert list(wire.device.records()) == [Died(4, "worker 2 (MPI rank 4) died")]


def test_who_leaves_for_a_death_says_so_before_it_says_that_it_leaves(wire):
    wire.say(Died(4, "worker 2 (MPI rank 4) died"))
    wire.link.leave()
    told = list(wire.device.records())
    assert told == [Died(4, "worker 2 (MPI rank 4) died"), Leave(wire.protocol.client)]


def test_who_leaves_has_said_all_that_it_had_to_say_however_full_the_ring_was(wire):
    while not wire.mailbox.has_unsent:
        wire.mailbox.send(1, Echo(0, 7))
    leaving = threading.Thread(target=wire.link.leave, daemon=True)
    leaving.start()
    while leaving.is_alive() and not wire.link._is_at_bell:
        os.sched_yield()
    told = []
    while leaving.is_alive():
        told += wire.device.records()
        wire.device.ring_always(0)
    told += wire.device.records()
    assert told[-1] == Leave(wire.protocol.client)
    assert not wire.mailbox.has_unsent


# --- several threads


def test_who_joins_waits_for_the_last_to_join(wire):
    client, last = wire.registered(), []
    joining = threading.Thread(target=lambda: last.append(client.join()), daemon=True)
    joining.start()
    while joining.is_alive() and not wire.link._is_at_bell:
        os.sched_yield()
    wire.say(Joined(3, 0))
    joining.join(FOR_EVER_S / 2)
    assert last == [3]


def test_a_thread_that_waits_for_a_region_lets_others_push(wire):
    client = pushing(wire)
    first = threading.Thread(target=client.push, args=(W._replace(name="new"), np.zeros(4, np.float32)), daemon=True)
    first.start()
    while not wire.link._is_at_bell:
        os.sched_yield()
    second = threading.Thread(target=client.push, args=(W, np.zeros(4, np.float32)), daemon=True)
    second.start()
    second.join(FOR_EVER_S / 2)
    assert not second.is_alive()
    wire.say(Registered(key_of("new"), 1, 0, 64))
    first.join(FOR_EVER_S / 2)
    assert not first.is_alive()
    assert wire.protocol.in_flight == {key_of("w"), key_of("new")}


class Memory:
    """Device memory of a few bytes."""

    def is_at(self, address: int, offset: int) -> bool:
        return False

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)


def test_a_rank_that_ends_writes_to_no_ring_while_another_thread_does(wire, monkeypatch):
    monkeypatch.setattr(link_module, "_LONGEST_WRITE_S", 0.0)
    told = threading.Thread(target=wire.link.warn_peers, args=("it raised",))
    with wire.link.lock:  # as a thread that pushes holds it
        told.start()
        told.join()
    assert list(wire.device.records()) == []
    wire.link.warn_peers("it raised")
    assert list(wire.device.records()) == [Died(0, "it raised")]


# --- results that nobody takes


def pushing(wire) -> Client:
    """A client with one key and memory for it."""
    client = wire.registered()
    client.memories = client._regions._memories = {0: Memory()}
    return client


def test_a_name_is_free_once_a_dropped_handles_result_has_come(wire):
    client = pushing(wire)
    array = np.zeros(4, np.float32)
    client.push_pull(W, array, np.empty_like(array))  # nobody keeps the handle
    state = wire.protocol.keys[key_of("w")]
    assert not state.is_claimed
    wire.say(Ready(key_of("w"), 0, 1, True))
    handle = client.push_pull(W, array, np.empty_like(array))
    assert (state.version, state.phase, state.is_claimed) == (1, KeyPhase.IN_FLIGHT, True)
    with pytest.raises(InFlightError, match="'w' was pushed again"):
        client.push_pull(W, array, array)
    wire.say(Ready(key_of("w"), 0, 1, True))
    handle.wait()
    del handle
    assert state.phase is KeyPhase.IDLE


def test_an_old_handle_gives_no_later_push_up(wire):
    client = pushing(wire)
    array = np.zeros(4, np.float32)
    old = client.push_pull(W, array, np.empty_like(array))
    wire.say(Ready(key_of("w"), 0, 1, True))
    client.pull("w", np.empty_like(array)).wait()
    later = client.push_pull(W, array, np.empty_like(array))
    del old
    assert wire.protocol.keys[key_of("w")].is_claimed
    assert not later.done()


def test_a_call_that_stalled_goes_on_where_it_was_and_refuses_other_values(wire):
    wire.link.stall_timeout_s = 0.0
    client = pushing(wire)
    array = np.ones(4, np.float32)
    with pytest.raises(StallError):
        client.push_pull_again(W, array, np.empty_like(array)).wait()
    with pytest.raises(InFlightError, match=r"rank 0: .*'w' raised StallError.* other values.*pull\('w'\)"):
        client.push_pull_again(W, 2 * array, np.empty_like(array))
    wire.say(Ready(key_of("w"), 0, 1, True))
    client.push_pull_again(W, array, np.empty_like(array)).wait()
    assert [type(record) for record in wire.device.records()].count(Push) == 1
    with pytest.raises(StallError):
        client.push_pull_again(W, 2 * array, np.empty_like(array)).wait()


def test_a_profile_that_stalled_goes_on_with_the_epoch_that_it_announced():
    protocol = ClientProtocol(0, PLACE)
    table = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=1 << 20)
    [sent] = protocol.on_profiled(table)
    assert (sent.record.epoch, protocol.is_profiling, protocol.has_all_tables) == (1, True, False)
    protocol.on_record(Tables(1, ((0, 0, 0, 1 << 20),)))  # the last table came after the wait had stalled
    assert (protocol.is_profiling, protocol.has_all_tables) == (True, True)
    protocol.end_profile()
    [sent] = protocol.on_profiled(table)
    assert sent.record.epoch == 2
