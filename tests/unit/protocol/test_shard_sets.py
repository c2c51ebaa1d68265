from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.plan import mask_of, runs_of

SHARDS = st.sets(st.integers(0, 200))


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_mask_has_exactly_the_bits_of_its_run(first, length):
    bits = {bit for bit in range(220) if mask_of(first, first + length) >> bit & 1}
    assert bits == set(range(first, first + length))


@given(SHARDS)
def test_runs_name_the_shards_of_a_set_in_order_and_never_touch(shards):
    runs = runs_of(sum(1 << shard for shard in shards))
    assert [shard for first, last in runs for shard in range(first, last)] == sorted(shards)
    assert all(last < first for (_, last), (first, _) in pairwise(runs))


def test_an_empty_set_has_no_runs():
    assert runs_of(0) == []
    assert mask_of(7, 7) == 0
