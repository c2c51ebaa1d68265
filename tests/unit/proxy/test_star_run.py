"""Stars: whatever comes first, the first member adds in the members' order and all end with its total."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.proxy.exchange_runs import StarRun
from coarse.proxy.instructions import RingId, RingReceive, RingSend

RING = RingId(7, 1, 0, 3)
NUM_ELEMENTS = 4


class Star:
    """Members with an array each; messages between them come in an order that a test draws."""

    def __init__(self, members, contributions, present):
        self.runs = {device: StarRun(RING, NUM_ELEMENTS, members, device) for device in members}
        self.arrays = dict(zip(members, contributions, strict=True))
        self.present = dict(zip(members, present, strict=True))
        self.waiting = list(members)
        self.messages = []
        self.received = {}
        self.order = []

    def asked(self, device):
        """Whether a member that has not begun was asked to."""
        return any(at == device and step >= 2 * len(self.runs) - 2 for at, step in self.received)

    def take(self, choice):
        """One event: a member's local sum is there, or a message arrives."""
        events = [("reduced", device) for device in self.waiting] + [("message", at) for at in self.messages]
        kind, what = events[choice % len(events)]
        if kind == "reduced":
            self.waiting.remove(what)
            self.carry_out(what, self.runs[what].on_reduced(2, present=self.present[what]))
            return
        self.messages.remove(what)
        device, header, values = what
        self.received[device, header.step] = values
        self.carry_out(device, self.runs[device].on_chunk(header.step, present=header.present))

    def carry_out(self, device, steps):
        for step in steps:
            if isinstance(step, RingSend):
                assert (step.begin, step.header.round) == (0, 2)
                assert step.end == (NUM_ELEMENTS if step.header.step < 2 * len(self.runs) - 2 else 0)
                self.messages.append((step.device, step.header, tuple(self.arrays[device][: step.end])))
            else:
                assert isinstance(step, RingReceive)
                values = np.array(self.received.pop((device, step.step)), np.float32)
                assert len(values) == step.end
                self.order.append((device, step.step))
                if step.end:
                    self.arrays[device] = self.arrays[device] + values if step.accumulate else values


@given(st.data(), st.integers(1, 5))
def test_all_members_have_the_bits_of_a_sum_in_their_order(data, num_members):
    members = tuple(data.draw(st.permutations(range(8)))[:num_members])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    contributions = [
        (rng.normal(size=NUM_ELEMENTS) * 10.0 ** rng.integers(-6, 6)).astype(np.float32) for _ in members
    ]
    present = [data.draw(st.booleans()) for _ in members]
    star = Star(members, contributions, present)
    while star.waiting or star.messages:
        star.take(data.draw(st.integers(0, 99)))
    wanted = contributions[0]
    for other in contributions[1:]:
        wanted = wanted + other
    assert all((array == wanted).all() for array in star.arrays.values())
    assert all(run.is_finished for run in star.runs.values())
    assert {run.present for run in star.runs.values()} == {any(present)}
    up = [step for device, step in star.order if device == members[0]]
    assert up == list(range(num_members - 1))


@pytest.mark.parametrize("num_members", [2, 4])
def test_steps_that_are_added_are_numbered_below_those_that_are_stored(num_members):
    """By which a proxy knows what its adder has to do: ProxyProtocol.adds."""
    members = tuple(range(num_members))
    star = Star(members, [np.zeros(NUM_ELEMENTS, np.float32)] * num_members, [True] * num_members)
    while star.waiting or star.messages:
        star.take(0)
    assert {step < num_members - 1 for device, step in star.order if device == 0} == {True}
    assert {step < num_members - 1 for device, step in star.order if device} == {False}


@given(st.data(), st.integers(2, 5), st.booleans())
def test_members_that_have_nothing_to_add_begin_as_they_are_asked_or_hear_of_others(data, num_members, first_begins):
    """One alone begins: the first member, or another, whose sum has the first begin."""
    members = tuple(range(num_members))
    star = Star(members, [np.ones(NUM_ELEMENTS, np.float32)] * num_members, [True] * num_members)
    beginner = 0 if first_begins else data.draw(st.integers(1, num_members - 1))
    idle = [device for device in members if device != beginner]
    star.waiting = [beginner]
    while star.waiting or star.messages:
        star.take(data.draw(st.integers(0, 99)))
        heard = {device for device, _ in star.received}
        for device in [one for one in idle if one in heard and (one == 0 or star.asked(one))]:
            idle.remove(device)
            star.waiting.append(device)
    assert not idle
    assert all((array == num_members).all() for array in star.arrays.values())
