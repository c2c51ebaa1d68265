"""Pages are pinned once, and no copy reaches from one pin into another."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.client.gpu_copies import PinnedRanges

PAGE = 1 << 16
RANGES = st.tuples(st.integers(0, 40 * PAGE), st.integers(1, 5 * PAGE)).map(lambda pair: (pair[0], sum(pair)))


def pinned_by(ranges: list[tuple[int, int]]) -> tuple[PinnedRanges, list[tuple[int, int]]]:
    """What is pinned once each range has been, and by which calls."""
    pins, calls = PinnedRanges(PAGE), []
    for begin, end in ranges:
        for lacking in pins.lacking(begin, end):
            pins.add(*lacking)
            calls.append(lacking)
    return pins, calls


def pages_of(begin: int, end: int) -> set[int]:
    return set(range(begin // PAGE, -(-end // PAGE)))


@given(st.lists(RANGES, max_size=12))
def test_every_page_of_a_range_is_pinned_by_one_call(ranges):
    _, calls = pinned_by(ranges)
    pages = [page for call in calls for page in pages_of(*call)]
    assert len(pages) == len(set(pages))
    assert set(pages) == {page for one in ranges for page in pages_of(*one)}
    assert all(begin % PAGE == end % PAGE == 0 and begin < end for begin, end in calls)


@given(st.lists(RANGES, max_size=12), RANGES)
def test_a_copy_is_cut_where_a_pin_begins_or_ends_and_nowhere_else(ranges, copy):
    pins, calls = pinned_by(ranges)
    begin, end = copy
    pieces = pins.pieces(begin, end)
    assert pieces[0][0] == begin
    assert pieces[-1][1] == end
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
    edges = {edge for call in calls for edge in call}
    assert {piece[0] for piece in pieces[1:]} == {edge for edge in edges if begin < edge < end}


def test_a_range_that_is_pinned_already_lacks_nothing():
    pins, _ = pinned_by([(0, 3 * PAGE)])
    assert pins.lacking(PAGE + 1, 2 * PAGE) == []
    assert pins.pieces(10, 20) == [(10, 20)]
