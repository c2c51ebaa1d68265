"""Which links can hold a transfer back, and what becomes of those of which this was not known."""

from coarse.hardware.fabric import Fabric
from coarse.hardware.links import Link
from coarse.hardware.ways import Ways


def link(bytes_per_s: float, table: tuple[tuple[int, float], ...] = ()) -> Link:
    return Link(name=f"of {bytes_per_s:g}", latency_s=0.0, bytes_per_s=bytes_per_s, table=table)


def covered(ways: Ways) -> list[int]:
    return [number for number, is_covered in enumerate(ways.is_covered) if is_covered]


def test_links_in_a_row_count_as_the_slowest_and_of_equal_ones_as_the_first():
    ways = Ways([link(2e6), link(1e6), link(3e6), link(1e6)])
    draw, uncovered = ways.new_draw(ways.way((0, 1, 2, 3)), 100)
    assert (covered(ways), uncovered, list(draw.costs), draw.cap) == ([0, 2, 3], [], [1], 1e6)
    assert [ways.cover_of(number) for number in range(4)] == [1, 1, 1, 1]


def test_a_path_that_goes_round_a_cover_uncovers_what_it_takes():
    ways = Ways([link(2e6), link(1e6)])
    draw, _ = ways.new_draw(ways.way((0, 1)), 100)
    assert list(draw.costs) == [1]
    other, uncovered = ways.new_draw(ways.way((0,)), 100)
    assert (covered(ways), uncovered) == ([], [(0, 1)])
    assert (list(draw.costs), list(other.costs)) == ([0, 1], [0])


def test_a_size_at_which_another_link_is_slower_uncovers_it():
    slow_for_small = link(2e6, ((10, 1e-3), (1000, 2e-3)))
    ways = Ways([slow_for_small, link(1e6)])
    way = ways.way((0, 1))
    ways.new_draw(way, 100_000)
    assert covered(ways) == [0]
    _, uncovered = ways.new_draw(way, 10)
    assert (covered(ways), uncovered) == ([], [(0, 1)])


def test_a_link_taken_twice_is_covered_by_none_that_is_taken_once_at_its_rate():
    ways = Ways([link(1e6), link(1e6)])
    ways.new_draw(ways.way((0, 1, 1)), 100)
    assert covered(ways) == [0]


def test_a_link_whose_rate_changes_neither_covers_nor_is_covered():
    ways = Ways([link(2e6), link(1e6), link(3e6)])
    ways.new_draw(ways.way((0, 1, 2)), 100)
    assert ways.change_rate(1, 9e6) == [(0, 1)]
    assert (covered(ways), ways.cover_of(2)) == ([2], 0)
    assert ways.new_draw(ways.way((0, 1, 2)), 100)[0].cap == 2e6
    assert ways.change_rate(2, 1e5) == [(2, 0)]
    assert covered(ways) == []


def test_transfers_under_way_are_held_back_by_a_link_that_becomes_the_narrow_one():
    fabric = Fabric([link(2e6), link(2e6)])
    fabric.start(0, (0, 1), 2_000_000, 0.0)
    assert fabric.advance(0.5) == []
    assert [fabric.bytes_moved(number) for number in (0, 1)] == [1_000_000, 1_000_000]
    for number in (1, 2, 3):
        fabric.start(number, (1,), 500_000, 0.5)  # the second link is covered by the first until now
    assert fabric.advance(1.5) == [(1.5, 1), (1.5, 2), (1.5, 3)]
    assert fabric.advance(2.0) == [(1.75, 0)]
    assert [fabric.bytes_moved(number) for number in (0, 1)] == [2_000_000, 3_500_000]
