"""Pieces cover what exists of every slice, once, and fit where they pass through."""

import pytest

from coarse.collectives.pieces import Pieces


@pytest.mark.parametrize("total_elements", [0, 1, 3, 64, 100, 1000, 1003])
@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("room_elements", [1, 100, 640, 10_000])
def test_pieces_cover_all_elements_once_and_in_order(total_elements, size, room_elements):
    slice_elements = -(-total_elements // size)
    pieces = Pieces.within(
        slice_elements=slice_elements, total_elements=total_elements, room_elements=room_elements, cells=size
    )
    covered = []
    for rank in range(size):
        for piece in range(pieces.count):
            first, last = pieces.bounds(rank, piece)
            assert last - first == pieces.length(rank, piece) <= pieces.piece_elements
            covered += range(first, last)
    assert covered == list(range(total_elements))
    assert pieces.piece_elements * size <= max(room_elements, size)


def test_a_slice_that_is_larger_than_its_room_is_cut_at_multiples_of_64_elements():
    pieces = Pieces.within(slice_elements=10_000, total_elements=40_000, room_elements=4000, cells=4)
    assert pieces.piece_elements == 960
    assert pieces.count == 11


def test_slices_past_the_end_are_empty():
    pieces = Pieces.within(slice_elements=1, total_elements=2, room_elements=100, cells=4)
    assert [pieces.length(rank, 0) for rank in range(4)] == [1, 1, 0, 0]
    assert pieces.num_slices == 2
