from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.ring import chunk_bounds, next_member, ring_steps


def run_ring(values, direction):
    """All members' chunks after a ring, each step moving what the schedule says at once."""
    num_members = len(values)
    held = [list(row) for row in values]
    schedules = [ring_steps(position, num_members, direction) for position in range(num_members)]
    for steps in zip(*schedules, strict=True):
        sent = [held[position][step.send_chunk] for position, step in enumerate(steps)]
        for position, step in enumerate(steps):
            came = sent[next_member(position, num_members, -direction)]
            if step.accumulate:
                held[position][step.receive_chunk] += came
            else:
                held[position][step.receive_chunk] = came
    return held


@pytest.mark.parametrize("direction", [+1, -1])
@pytest.mark.parametrize("num_members", range(1, 9))
def test_every_member_ends_a_ring_with_the_sum_of_all(num_members, direction):
    values = [
        [10**member * (chunk + 1) for chunk in range(num_members)] for member in range(num_members)
    ]
    total = [sum(column) for column in zip(*values, strict=True)]
    assert run_ring(values, direction) == [total] * num_members


@pytest.mark.parametrize("direction", [+1, -1])
@pytest.mark.parametrize("num_members", range(1, 9))
def test_what_a_member_sends_is_what_its_next_receives(num_members, direction):
    for position in range(num_members):
        receiver = next_member(position, num_members, direction)
        assert next_member(receiver, num_members, -direction) == position
        sends = ring_steps(position, num_members, direction)
        receives = ring_steps(receiver, num_members, direction)
        assert [s.send_chunk for s in sends] == [r.receive_chunk for r in receives]


@pytest.mark.parametrize("direction", [+1, -1])
@pytest.mark.parametrize("num_members", range(1, 9))
def test_a_ring_reduces_in_its_first_half_and_gathers_in_its_second(num_members, direction):
    for position in range(num_members):
        steps = ring_steps(position, num_members, direction)
        half = num_members - 1
        assert [step.accumulate for step in steps] == [True] * half + [False] * half
        received = [step.receive_chunk for step in steps]
        assert [step.send_chunk for step in steps[1:]] == received[:-1]


@pytest.mark.parametrize("num_members", range(2, 9))
def test_after_reduce_scatter_a_member_keeps_the_chunk_ahead_of_it(num_members):
    for direction in (+1, -1):
        for position in range(num_members):
            last = ring_steps(position, num_members, direction)[num_members - 2]
            assert last.receive_chunk == next_member(position, num_members, direction)


@pytest.mark.parametrize("direction", [0, 2, -2])
def test_a_direction_other_than_one_step_is_refused(direction):
    for call in (ring_steps, next_member):
        with pytest.raises(ValueError, match="direction"):
            call(0, 2, direction)


@pytest.mark.parametrize(("position", "num_members"), [(-1, 2), (2, 2), (0, 0)])
def test_a_position_outside_the_ring_is_refused(position, num_members):
    with pytest.raises(ValueError, match="position"):
        ring_steps(position, num_members, +1)


@given(num_elements=st.integers(0, 10**12), num_members=st.integers(1, 40))
def test_chunks_cover_all_elements_once_and_differ_by_at_most_one(num_elements, num_members):
    bounds = chunk_bounds(num_elements, num_members)
    assert len(bounds) == num_members
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_elements
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    lengths = [end - begin for begin, end in bounds]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("num_elements", "num_members"), [(-1, 2), (4, 0)])
def test_chunks_of_nothing_sensible_are_refused(num_elements, num_members):
    with pytest.raises(ValueError, match="num_elements"):
        chunk_bounds(num_elements, num_members)
