"""Pulls through a window, foreseen by the order of the step before."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.luwu.store.image import Stamp
from coarse.luwu.store.instructions import Offer, Place, ReadPulled
from coarse.luwu.store.pulls import PullOrder, PullWindow

CHUNKS = (3, 1, 2, 5)


def test_pulls_are_foreseen_from_the_second_step_on_and_never_beyond_a_step():
    order = PullOrder()
    step = [0, 1, 2, 2, 1, 0]
    for unit in step:
        assert order.expected() is None
        order.on_pull(unit)
    order.on_step()
    for place, unit in enumerate(step):
        assert order.expected() == unit
        assert order.expected(1) == (step[place + 1] if place + 1 < len(step) else None)
        order.on_pull(unit)
    assert order.expected() is None
    order.on_step()
    assert order.in_order([2, 0, 1]) == [0, 1, 2]


def test_after_an_evaluation_the_order_is_found_again():
    order = PullOrder()
    for unit in [0, 1, 2, 2, 1, 0]:
        order.on_pull(unit)
    order.on_step()
    for unit in [0, 1, 2, 0, 1, 2]:  # two batches without a backward
        order.on_pull(unit)
    order.on_pull(0)
    assert order.expected() == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 3), st.just(-1)), max_size=40), st.integers(1, 6), st.integers(0, 1 << 20)
)
def test_every_pull_is_offered_whole_and_in_order_whatever_was_foreseen(asked, num_slots, seed):
    """-1: a step, after which chunks are of the next version, and are unreadable for a while."""
    rng = random.Random(seed)
    step = 0
    ready = True
    window = PullWindow(
        num_slots, CHUNKS.__getitem__, lambda unit, chunk: Place(0, Stamp(unit, chunk, step)) if ready else None
    )
    reading, wanted, offered = [], [], {}
    asked = list(asked)
    freed = 0
    held = {}

    def note(instructions):
        for one in instructions:
            if isinstance(one, ReadPulled):
                slot = one.number % num_slots
                assert one.number < freed + num_slots
                assert all(other.number % num_slots != slot for other in reading)
                reading.append(one)
            else:
                assert isinstance(one, Offer)
                slot = one.number % num_slots
                unit, chunk, version = held[slot]
                assert (unit, chunk) == (one.unit, one.chunk)
                assert one.number not in offered
                offered[one.number] = unit, chunk, version

    while asked or reading or len(offered) < len(wanted) or freed < len(wanted):
        choice = rng.random()
        if asked and choice < 0.3:
            unit = asked[0]
            if unit >= 0:
                asked.pop(0)
                wanted += [(unit, chunk, step) for chunk in range(CHUNKS[unit])]
                note(window.on_pull(unit))
            elif freed == len(wanted):  # workers step when they have all
                asked.pop(0)
                step += 1
                ready = rng.random() < 0.5
                note(window.on_step())
        elif reading and choice < 0.7:
            one = reading.pop(rng.randrange(len(reading)))
            held[one.number % num_slots] = one.unit, one.chunk, one.at.stamp.version
            note(window.on_read(one))
        elif freed in offered:
            freed += 1
            note(window.on_freed(freed))
        elif not ready:
            ready = True
            note(window.go_on())
    assert [offered[number] for number in range(len(wanted))] == wanted
