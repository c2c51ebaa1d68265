"""FSDP's minibatch on unequal workers: ODC's formula without communication, and bounds with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.simulation.lockstep import LockstepTimes, lockstep_s

FORWARD = 1 / 3


@st.composite
def costs(draw: st.DrawFn) -> list[list[float]]:
    num_microbatches = draw(st.integers(1, 4))
    own = st.lists(st.floats(0, 10), min_size=num_microbatches, max_size=num_microbatches)
    return draw(st.lists(own, min_size=1, max_size=5))


@given(costs(), st.integers(1, 6))
def test_without_communication_it_is_the_sum_of_the_slowest(of_all, num_units):
    wanted = sum(max(of_one) for of_one in zip(*of_all, strict=True))
    assert lockstep_s(of_all, num_units, FORWARD, LockstepTimes()) == pytest.approx(wanted)


@given(costs(), st.integers(1, 6), st.floats(0, 2), st.floats(0, 2))
def test_it_is_never_shorter_than_its_compute_or_its_links_nor_longer_than_both(of_all, num_units, gather_s, reduce_s):
    compute_s = lockstep_s(of_all, num_units, FORWARD, LockstepTimes())
    links_s = len(of_all[0]) * num_units * (2 * gather_s + reduce_s)
    free = lockstep_s(of_all, num_units, FORWARD, LockstepTimes(gather_s=gather_s, reduce_s=reduce_s))
    awaited = lockstep_s(
        of_all, num_units, FORWARD, LockstepTimes(gather_s=gather_s, reduce_s=reduce_s, is_reduce_awaited=True)
    )
    for found in (free, awaited):
        assert max(compute_s, links_s) - 1e-9 <= found <= compute_s + links_s + 1e-9
    assert awaited >= free - 1e-9


def test_a_gather_hides_beneath_the_unit_before_it():
    """Four units of 1 s forward and 2 s backward: the first gather of each pass shows, of 0.5 s, and no other."""
    times = LockstepTimes(gather_s=0.5)
    assert lockstep_s([[12.0]], 4, FORWARD, times) == pytest.approx(12.0 + 2 * 0.5)


def test_unequal_numbers_of_microbatches_are_refused():
    with pytest.raises(ConfigError, match="equally many microbatches"):
        lockstep_s([[1.0], [1.0, 2.0]], 2, FORWARD, LockstepTimes())
