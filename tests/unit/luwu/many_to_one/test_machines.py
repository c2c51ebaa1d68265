"""The ends of a hop and the switches, on ranges of packets."""

from coarse.luwu.many_to_one.packets import Beat, Complete, Data, Free, Probe, Take, Transmit, unwrapped
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.round_trips import RoundTrips
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import PARENT, AddingSwitch, BroadcastingSwitch


def test_a_range_is_sent_by_one_call_and_no_further_than_there_is_credit() -> None:
    sender = Sender(0, 10)
    sender.offer(0, 25)
    assert sender.send() == [Transmit(0, Data(0, 10, 9, asks=True))]
    assert sender.send() == []
    assert sender.on_beat(Beat(ack=6, credit=16, beyond=0, echo=5)) == [Free(6)]
    assert sender.send(4) == [Transmit(0, Data(10, 14, 13, asks=False))]
    assert sender.send(4) == [Transmit(0, Data(14, 16, 15, asks=True))]
    assert sender.num_resent == 0


def test_a_gap_is_sent_again_once_enough_has_overtaken_it_and_before_what_is_new() -> None:
    sender = Sender(0, 8, reorder=3)
    sender.offer(0, 20)
    sender.send(6)
    sender.on_beat(Beat(ack=1, credit=9, beyond=0b110, echo=3))  # 1 lacks, and 2 and 3 came
    assert sender.send(1) == [Transmit(0, Data(6, 7, 6, asks=False))]
    sender.on_beat(Beat(ack=1, credit=9, beyond=0b1110, echo=4))
    assert sender.send() == [Transmit(0, Data(1, 2, 7, asks=False)), Transmit(0, Data(7, 9, 9, asks=True))]
    sender.on_beat(Beat(ack=1, credit=9, beyond=0b1111110, echo=6))  # does not speak of its second transmission
    assert sender.send() == []
    sender.on_beat(Beat(ack=1, credit=9, beyond=0b11111110, echo=10))
    assert sender.send() == [Transmit(0, Data(1, 2, 10, asks=True))]
    assert sender.num_resent == 2


def test_where_nothing_follows_that_was_lost_a_timer_asks_and_the_answer_tells() -> None:
    sender, receiver = Sender(0, 8, reorder=3), Receiver(0, 8)
    assert sender.on_timer() == []
    sender.offer(0, 2)
    sender.send()
    (probe,) = sender.on_timer()
    assert isinstance(probe, Transmit)
    assert isinstance(probe.message, Probe)
    (answer,) = receiver.on_probe(probe.message)
    assert isinstance(answer, Transmit)
    assert isinstance(answer.message, Beat)
    sender.on_beat(answer.message)
    assert sender.send() == [Transmit(0, Data(0, 2, 7, asks=True))]


def test_a_heartbeat_that_comes_late_takes_nothing_back() -> None:
    sender = Sender(0, 4)
    sender.offer(0, 9)
    sender.send()
    sender.on_beat(Beat(ack=4, credit=8, beyond=0, echo=3))
    sender.on_beat(Beat(ack=1, credit=5, beyond=0b10, echo=2))
    assert (sender.ack, sender.credit) == (4, 8)
    assert sender.send() == [Transmit(0, Data(4, 8, 7, asks=True))]


def test_a_receiver_takes_what_is_new_of_a_range() -> None:
    receiver = Receiver(3, 8)
    assert receiver.on_data(Data(2, 4, 3, asks=False))[0] == Take(3, 2, 4)
    done = receiver.on_data(Data(0, 6, 9, asks=False))
    assert done[:3] == [Take(3, 0, 2), Take(3, 4, 6), Complete(6)]
    assert receiver.on_data(Data(0, 6, 12, asks=False)) == [Transmit(3, Beat(6, 8, 0, 12))]
    assert receiver.on_data(Data(7, 12, 20, asks=False))[0] == Take(3, 7, 8)  # beyond 8 there is no room


def test_heartbeats_are_few_while_nothing_lacks() -> None:
    receiver = Receiver(0, 100)
    beats = [
        one
        for packet in range(100)
        for one in receiver.on_data(Data(packet, packet + 1, packet, asks=False))
        if isinstance(one, Transmit)
    ]
    assert len(beats) == 4
    assert receiver.consume(20) == []
    assert receiver.consume(25) == [Transmit(0, Beat(100, 125, 0, 99))]


def test_a_switch_sends_a_sum_once_all_children_came_and_frees_its_slot_once_it_was_acknowledged() -> None:
    switch = AddingSwitch(2, 4, 4)
    assert switch.on_data(0, Data(0, 4, 3, asks=False))[0] == Take(0, 0, 4)
    assert switch.send() == []
    assert switch.on_data(1, Data(1, 3, 2, asks=False))[0] == Take(1, 1, 3)
    assert switch.send() == [Transmit(PARENT, Data(1, 3, 1, asks=True))]
    assert not [one for one in switch.on_data(0, Data(1, 3, 9, asks=False)) if isinstance(one, Take)]
    switch.on_data(1, Data(0, 1, 0, asks=False))
    assert switch.send() == [Transmit(PARENT, Data(0, 1, 2, asks=True))]
    done = switch.on_beat(Beat(ack=3, credit=7, beyond=0, echo=2))
    assert done == [Free(3), Transmit(0, Beat(4, 7, 0, 9)), Transmit(1, Beat(3, 7, 0, 2))]
    assert switch.on_data(1, Data(0, 3, 12, asks=False)) == [Transmit(1, Beat(3, 7, 0, 12))]  # late: begins nothing


def test_a_broadcast_frees_what_all_children_have_and_gives_credit_for_no_more() -> None:
    switch = BroadcastingSwitch(2, 4, [4, 2])
    switch.on_data(Data(0, 4, 3, asks=False))
    assert switch.send(0) == [Transmit(0, Data(0, 4, 3, asks=True))]
    assert switch.send(1) == [Transmit(1, Data(0, 2, 1, asks=True))]
    assert switch.on_beat(0, Beat(4, 8, 0, 3)) == []
    assert switch.on_beat(1, Beat(1, 3, 0, 0)) == [Free(1), Transmit(PARENT, Beat(4, 5, 0, 3))]
    assert switch.send(1) == [Transmit(1, Data(2, 3, 2, asks=True))]


def test_numbers_on_the_wire_are_those_nearest_to_what_is_known() -> None:
    for near in (0, 5, 250, 256, 1000, 2**40):
        for number in range(near - 127, near + 127):
            assert unwrapped(number % 256, near, 256) == number


def test_a_timeout_follows_what_answers_take() -> None:
    trips = RoundTrips(1.0)
    for stamp in range(0, 100, 2):
        trips.on_sent(stamp, now_s=float(stamp))
        trips.on_sent(stamp + 1, now_s=stamp + 0.5)  # is not measured: one at a time
        trips.on_echo(stamp - 1, now_s=stamp + 0.6)
        trips.on_echo(stamp + 1, now_s=stamp + 0.01)
    assert 0.01 <= trips.timeout_s < 0.02
    calm_s = trips.timeout_s
    trips.on_silence()
    assert trips.timeout_s == 2 * calm_s
    for _ in range(2000):
        trips.on_silence()
    assert trips.timeout_s == 1.0
    assert RoundTrips(0.1, least_s=2.0).timeout_s == 2.0
