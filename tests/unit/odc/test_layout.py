"""Neighbouring parameters of a piece are added at once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.odc.layout import OdcUnit

LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(LENGTHS, st.integers(0, 63), st.integers(0, 63))
def test_runs_lead_from_the_elements_of_a_piece_to_those_of_the_sums(lengths, among, some):
    """Each element of a parameter of the mask is in one run, and no two runs could be one."""
    unit, mask = OdcUnit(shard_nbytes=0, segments=tuple(lengths), dtype=0), among & some
    sums = [(place, n) for place, length in enumerate(lengths) for n in range(length)]
    piece = [(place, n) for place, n in sums if among >> place & 1]
    runs = unit.runs(mask, among)
    pairs = [(begin + n, at + n) for begin, at, count in runs for n in range(count)]
    assert all(piece[from_piece] == sums[to] for from_piece, to in pairs)
    assert [sums[to] for _, to in pairs] == [(place, n) for place, n in sums if mask >> place & 1]
    assert all(at + count < next_at for (_, at, count), (_, next_at, _) in pairwise(runs))
