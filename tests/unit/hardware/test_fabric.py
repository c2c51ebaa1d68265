"""The fabric against a reference that shares all links anew at every event, and its promises one by one."""

import math
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.fabric import Fabric
from coarse.hardware.fair_share import max_min_rates, shares_of
from coarse.hardware.links import Link, path_alone_s

LATENCY_S = 1e-5


def wires(num_links: int, *, latency_s: float = 0.0, bytes_per_s: float = 1e6) -> list[Link]:
    return [Link(name=f"wire {i}", latency_s=latency_s, bytes_per_s=bytes_per_s) for i in range(num_links)]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Links, (at, path, bytes, bytes of a piece) of every transfer, and (at, link, new rate) of every change."""

    links: tuple[Link, ...]
    transfers: tuple[tuple[float, tuple[int, ...], int, int | None], ...]
    changes: tuple[tuple[float, int, float], ...]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    rate = st.sampled_from([1e5, 2e5, 3e5, 1e6, 7.7e6])
    latency = st.sampled_from([0.0, LATENCY_S, 1e-2])
    table = st.sampled_from([(), ((1000, 1.7e-2), (100_000, 0.4)), ((10, 1e-6),)])
    made = draw(st.lists(st.tuples(latency, rate, table), min_size=1, max_size=6))
    at = st.one_of(st.sampled_from([0.0, 0.1, 0.2]), st.floats(0, 1))
    link = st.integers(0, len(made) - 1)
    path = st.lists(link, max_size=4).map(tuple)
    nbytes = st.one_of(st.just(0), st.sampled_from([1000, 50_000]), st.integers(0, 500_000))
    piece = st.sampled_from([None, None, 10, 1000, 100_000])
    return Traffic(
        links=tuple(
            Link(name=f"wire {i}", latency_s=latency_s, bytes_per_s=bytes_per_s, table=rows)
            for i, (latency_s, bytes_per_s, rows) in enumerate(made)
        ),
        transfers=tuple(draw(st.lists(st.tuples(at, path, nbytes, piece), min_size=1, max_size=12))),
        changes=tuple(draw(st.lists(st.tuples(at, link, rate), max_size=3, unique_by=lambda change: change[:2]))),
    )


def loaded(traffic: Traffic) -> Fabric:
    """A fabric that has been told of everything beforehand."""
    fabric = Fabric(traffic.links)
    for number, (at_s, path, nbytes, piece_bytes) in enumerate(traffic.transfers):
        fabric.start(number, path, nbytes, at_s, piece_bytes=piece_bytes)
    for at_s, link, bytes_per_s in traffic.changes:
        fabric.set_rate(link, bytes_per_s, at_s)
    return fabric


def ends(fabric: Fabric) -> dict[int, float]:
    """When each transfer ends, from one event to the next."""
    ended: list[tuple[float, int]] = []
    while (next_s := fabric.next_s()) is not None:
        ended += fabric.advance(next_s)
    assert [end_s for end_s, _ in ended] == sorted(end_s for end_s, _ in ended)
    return {number: end_s for end_s, number in ended}


def reference_ends(traffic: Traffic) -> dict[int, float]:
    """When each transfer ends, all shares found anew at every event."""
    rates = {link: each.bytes_per_s for link, each in enumerate(traffic.links)}
    waiting = {
        number: at_s + sum(traffic.links[link].latency_s for link in path)
        for number, (at_s, path, _, _) in enumerate(traffic.transfers)
    }
    changes, left, ended, now_s = sorted(traffic.changes), {}, {}, 0.0
    once = [costs_once(traffic, number) for number in range(len(traffic.transfers))]

    while waiting or left:
        costs = {
            number: {link: cost * traffic.transfers[number][1].count(link) for link, cost in once[number].items()}
            for number in left
        }
        caps = {number: min(rates[link] / cost for link, cost in costs[number].items()) for number in left}
        shares = max_min_rates(costs, caps, {number: 1 / max(once[number].values()) for number in left}, rates)
        dues = {number: now_s + left[number] / shares[number] for number in left}
        then_s = min([*waiting.values(), *dues.values(), *(at_s for at_s, _, _ in changes)])
        left = {number: left[number] - shares[number] * (then_s - now_s) for number in left}
        for number in [number for number, due_s in dues.items() if due_s <= then_s + 1e-12]:
            ended[number] = dues[number]
            del left[number]
        for number in [number for number, ready_s in waiting.items() if ready_s <= then_s]:
            _, path, nbytes, _ = traffic.transfers[number]
            if path and nbytes:
                left[number] = nbytes
            else:
                ended[number] = waiting[number]
            del waiting[number]
        while changes and changes[0][0] <= then_s:
            _, link, rates[link] = changes.pop(0)
        now_s = then_s
    return ended


def costs_once(traffic: Traffic, number: int) -> dict[int, float]:
    """What a byte per second of a transfer takes of each link's capacity whenever it comes by."""
    _, path, nbytes, piece_bytes = traffic.transfers[number]
    size = piece_bytes or nbytes
    return {
        link: each.bytes_per_s * (each.streaming_s(size) / size if size else 1 / each.bytes_per_s)
        for link, each in enumerate(traffic.links)
        if link in path
    }


@given(traffics())
def test_sharing_only_where_something_changed_equals_sharing_everything_anew(traffic: Traffic):
    assert ends(loaded(traffic)) == pytest.approx(reference_ends(traffic), rel=1e-9, abs=1e-9)


@given(traffics())
def test_every_link_has_moved_the_bytes_of_its_transfers_and_no_more(traffic: Traffic):
    fabric = loaded(traffic)
    ends(fabric)
    for link in range(len(traffic.links)):
        assert fabric.bytes_moved(link) == sum(n * path.count(link) for _, path, n, _ in traffic.transfers)


@given(traffics())
def test_no_link_moves_more_than_its_highest_rate_allows(traffic: Traffic):
    fabric, moved = loaded(traffic), [0.0] * len(traffic.links)
    highest = [
        max([each.bytes_per_s, *(rate for _, changed, rate in traffic.changes if changed == link)])
        for link, each in enumerate(traffic.links)
    ]
    for tick in range(1, 20):
        fabric.advance(tick / 10)
        for link in range(len(traffic.links)):
            now_moved = fabric.bytes_moved(link)
            assert -1e-3 <= now_moved - moved[link] <= highest[link] / 10 + 1e-3
            moved[link] = now_moved


@given(traffics(), st.lists(st.floats(0, 3), max_size=8))
def test_how_often_the_fabric_is_advanced_changes_nothing(traffic: Traffic, stops_s: list[float]):
    fabric, ended = Fabric(traffic.links), []
    orders = [
        (at_s, partial(fabric.start, piece_bytes=piece_bytes), (number, path, nbytes, at_s))
        for number, (at_s, path, nbytes, piece_bytes) in enumerate(traffic.transfers)
    ]
    orders += [(at_s, fabric.set_rate, (link, rate, at_s)) for at_s, link, rate in traffic.changes]
    orders += [(stop_s, lambda: None, ()) for stop_s in stops_s]
    for at_s, order, arguments in sorted(orders, key=lambda each: each[0]):
        ended += fabric.advance(at_s)
        assert fabric.now_s == at_s
        order(*arguments)
    after = {number: end_s for end_s, number in ended} | ends(fabric)
    assert after == pytest.approx(ends(loaded(traffic)), rel=1e-12, abs=1e-12)


@given(traffics())
def test_the_same_traffic_ends_at_the_same_times_to_the_last_bit(traffic: Traffic):
    assert ends(loaded(traffic)) == ends(loaded(traffic))


@given(traffics())
def test_traffic_that_comes_again_takes_as_long_as_at_first(traffic: Traffic):
    """What is remembered of shares is what would be found anew."""
    fabric, again = loaded(replace(traffic, changes=())), len(traffic.transfers)
    first = ends(fabric)
    begin_s = fabric.now_s
    for number, (at_s, path, nbytes, piece_bytes) in enumerate(traffic.transfers, start=again):
        fabric.start(number, path, nbytes, begin_s + at_s, piece_bytes=piece_bytes)
    second = {number - again: end_s - begin_s for number, end_s in ends(fabric).items()}
    assert second == pytest.approx(first, rel=1e-9, abs=1e-9)


def test_a_share_that_is_remembered_does_not_outlive_its_links_rate():
    fabric = Fabric(wires(1))
    for begin_s, number in ((0.0, 0), (2.0, 2)):
        for each in (number, number + 1):
            fabric.start(each, (0,), 500_000, begin_s)
    fabric.set_rate(0, 5e5, 1.5)
    assert ends(fabric) == {0: 1.0, 1: 1.0, 2: pytest.approx(4.0), 3: pytest.approx(4.0)}


def test_a_rate_that_changes_on_one_fabric_leaves_shares_of_another_of_equal_links_alone():
    links = wires(2, bytes_per_s=100.0)
    changed, other = Fabric(links), Fabric(links)
    for fabric in (changed, other):
        fabric.start(0, (0,), 100, 0.0)
        fabric.start(1, (0, 1), 100, 0.0)
    changed.set_rate(0, 50.0, 1.0)
    assert ends(changed) == pytest.approx({0: 3.0, 1: 3.0})
    assert ends(other) == pytest.approx({0: 2.0, 1: 2.0})


@given(traffics())
def test_what_other_fabrics_of_equal_links_remember_changes_no_bit(traffic: Traffic):
    shares_of.cache_clear()
    alone = ends(loaded(traffic))
    for others in (traffic.transfers[::-1], traffic.transfers[::2]):
        shares_of.cache_clear()
        ends(loaded(replace(traffic, transfers=others)))
        assert ends(loaded(traffic)) == alone


@given(traffics())
def test_a_transfer_alone_takes_what_its_path_takes_alone(traffic: Traffic):
    for at_s, path, nbytes, _ in traffic.transfers:
        fabric = Fabric(traffic.links)
        fabric.start(7, path, nbytes, at_s)
        alone_s = path_alone_s([traffic.links[link] for link in path], nbytes)
        assert ends(fabric) == {7: pytest.approx(at_s + alone_s, rel=1e-12)}


def test_two_transfers_on_a_link_take_half_each_until_one_ends_and_a_third_elsewhere_all_it_can():
    fabric = Fabric(wires(2))
    for number, (link, nbytes) in enumerate([(0, 1_000_000), (0, 500_000), (1, 1_000_000)]):
        fabric.start(number, (link,), nbytes, 0.0)
    assert ends(fabric) == {1: pytest.approx(1.0), 0: pytest.approx(1.5), 2: pytest.approx(1.0)}


HALF_SPEED = Link(name="half speed below 1 MB", latency_s=0.0, bytes_per_s=1e6, table=((1_000_000, 2.0),))


def test_small_transfers_at_once_get_no_more_through_than_one_after_the_other():
    fabric = Fabric([HALF_SPEED])
    for number in range(5):
        fabric.start(number, (0,), 1_000_000, 0.0)
    assert ends(fabric) == dict.fromkeys(range(5), pytest.approx(10.0))


def test_transfers_of_whatever_size_share_the_time_of_a_link_and_not_its_bytes():
    fabric = Fabric([Link(name="wire", latency_s=0.0, bytes_per_s=1e6, table=((1000, 0.1), (1_000_000, 1.0)))])
    fabric.start(0, (0,), 1000, 0.0)
    fabric.start(1, (0,), 1_000_000, 0.0)
    assert ends(fabric) == {0: pytest.approx(0.2), 1: pytest.approx(1.1)}


def test_a_link_whose_table_does_not_hold_a_small_transfer_gives_it_its_rate_cheaply():
    fabric = Fabric([HALF_SPEED, *wires(2)])
    for number, path in enumerate([(0, 1), (1,)]):
        fabric.start(number, path, 1_000_000, 0.0)
    assert ends(fabric) == {0: pytest.approx(2.5), 1: pytest.approx(1.5)}


def test_a_transfer_in_pieces_takes_what_its_pieces_take_one_after_the_other():
    fabric = Fabric([HALF_SPEED])
    fabric.start(0, (0,), 8_000_000, 0.0, piece_bytes=1_000_000)
    assert ends(fabric) == {0: pytest.approx(16.0)}


def test_a_transfer_in_pieces_keeps_a_link_as_busy_as_its_pieces_do():
    fabric = Fabric([HALF_SPEED])
    fabric.start(0, (0,), 1_000_000, 0.0, piece_bytes=500_000)
    fabric.start(1, (0,), 9_000_000, 0.0)
    assert ends(fabric) == {0: pytest.approx(4.0), 1: pytest.approx(12.0)}
    assert fabric.bytes_moved(0) == 10_000_000


@given(traffics())
def test_a_piece_as_large_as_its_transfer_changes_nothing(traffic: Traffic):
    whole = replace(traffic, transfers=tuple((at, path, n, None) for at, path, n, _ in traffic.transfers))
    in_one = replace(traffic, transfers=tuple((at, path, n, n or None) for at, path, n, _ in traffic.transfers))
    assert ends(loaded(whole)) == ends(loaded(in_one))


@given(traffics())
def test_no_link_is_busy_for_longer_than_there_is_time(traffic: Traffic):
    """Whatever goes on at once, each transfer has kept its links busy for as long as alone."""
    unchanged = replace(traffic, changes=())
    ended = ends(loaded(unchanged))
    for link, each in enumerate(traffic.links):
        users = [number for number, (_, path, n, _) in enumerate(traffic.transfers) if link in path and n]
        busy_s = sum(
            costs_once(traffic, number)[link] * path.count(link) * nbytes / each.bytes_per_s
            for number, (_, path, nbytes, _) in enumerate(traffic.transfers)
            if number in users
        )
        begun_s = min((traffic.transfers[number][0] for number in users), default=0.0)
        assert busy_s <= max((ended[number] for number in users), default=0.0) - begun_s + 1e-9


def test_a_latency_uses_no_bandwidth():
    fabric = Fabric([*wires(1), *wires(1, latency_s=1.0)])
    fabric.start(0, (0,), 1_000_000, 0.0)
    fabric.start(1, (0, 1), 1_000_000, 0.0)
    assert ends(fabric) == {0: pytest.approx(1.0), 1: pytest.approx(2.0)}


def test_a_late_begin_is_credited_as_if_it_had_begun_in_time():
    fabric = Fabric(wires(1, latency_s=0.25))
    fabric.advance(1.0)
    fabric.start(0, (0,), 1_000_000, 1.0, begun_s=0.5)
    assert ends(fabric) == {0: pytest.approx(1.75)}


def test_a_late_begin_may_end_before_it_was_known():
    fabric = Fabric(wires(1))
    fabric.advance(5.0)
    fabric.start(0, (0,), 1_000_000, 5.0, begun_s=1.0)
    assert fabric.next_s() == 5.0
    assert ends(fabric) == {0: pytest.approx(2.0)}
    assert fabric.bytes_moved(0) == 1_000_000


def test_a_late_begin_is_credited_only_the_share_that_it_gets_first():
    fabric = Fabric(wires(1))
    fabric.start(0, (0,), 2_000_000, 0.0)
    fabric.advance(1.0)
    fabric.start(1, (0,), 1_000_000, 1.0, begun_s=0.0)
    assert ends(fabric) == {1: pytest.approx(2.0), 0: pytest.approx(2.5)}


def test_a_late_begin_whose_latency_is_not_over_is_simply_on_time():
    fabric = Fabric(wires(1, latency_s=1.0))
    fabric.start(0, (0,), 1_000_000, 0.5, begun_s=0.0)
    assert ends(fabric) == {0: pytest.approx(2.0)}


@pytest.mark.parametrize(("path", "nbytes", "end_s"), [((), 1_000_000, 2.0), ((0,), 0, 2.5), ((), 0, 2.0)])
def test_what_moves_no_bytes_takes_the_latency_alone(path: tuple[int, ...], nbytes: int, end_s: float):
    fabric = Fabric(wires(1, latency_s=0.5))
    fabric.start(0, path, nbytes, 2.0)
    assert ends(fabric) == {0: end_s}


def test_a_link_that_slows_down_lengthens_what_is_left():
    fabric = Fabric(wires(1))
    fabric.start(0, (0,), 1_000_000, 0.0)
    fabric.set_rate(0, 1e5, 0.5)
    fabric.advance(0.5)
    assert fabric.bytes_moved(0) == pytest.approx(500_000)
    fabric.set_rate(0, 1e6, 1.5)
    assert ends(fabric) == {0: pytest.approx(0.5 + 1.0 + 0.4)}


def test_a_link_may_slow_down_in_the_moment_in_which_a_transfer_ends():
    fabric = Fabric(wires(1))
    fabric.set_rate(0, 1e5, 1.0)
    fabric.start(0, (0,), 1_000_000, 0.0)
    assert fabric.advance(1.0) == [(1.0, 0)]
    assert fabric.next_s() is None


def test_a_link_that_slows_down_takes_its_times_by_size_along():
    fabric = Fabric([Link(name="wire", latency_s=0.0, bytes_per_s=1e6, table=((1000, 0.5), (2000, 0.6)))])
    fabric.set_rate(0, 5e5, 0.0)
    fabric.start(0, (0,), 1000, 1.0)
    assert ends(fabric) == {0: pytest.approx(2.0)}


def test_a_number_is_free_again_once_its_transfer_has_ended():
    fabric = Fabric(wires(1))
    fabric.start(0, (0,), 1_000_000, 0.0)
    with pytest.raises(ValueError, match="under way"):
        fabric.start(0, (0,), 1, 0.0)
    assert fabric.advance(1.0) == [(1.0, 0)]
    fabric.start(0, (0,), 1_000_000, 1.0)
    assert fabric.advance(2.0) == [(2.0, 0)]
    assert fabric.next_s() is None


@pytest.mark.parametrize(
    ("path", "nbytes", "at_s", "begun_s"),
    [((0,), -1, 1.0, 1.0), ((0,), 1, 0.5, None), ((0,), 1, 1.0, 1.5), ((0,), 1, math.nan, None),
     ((0,), 1, math.inf, None), ((1,), 1, 1.0, None), ((-1,), 1, 1.0, None), ((0,), 1, 1.0, math.nan)],
)  # fmt: skip
def test_an_impossible_transfer_is_refused_and_leaves_no_trace(
    path: tuple[int, ...], nbytes: int, at_s: float, begun_s: float | None
):
    fabric = Fabric(wires(1))
    fabric.advance(1.0)
    with pytest.raises(ValueError, match=r"transfer|path"):
        fabric.start(0, path, nbytes, at_s, begun_s=begun_s)
    assert fabric.next_s() is None
    fabric.start(0, (0,), 1_000_000, 1.0)
    assert ends(fabric) == {0: pytest.approx(2.0)}


def test_time_runs_forward_only():
    fabric = Fabric(wires(1))
    fabric.advance(1.0)
    for to_s in (0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="forward"):
            fabric.advance(to_s)
        with pytest.raises(ValueError, match=r"from 1\.0 s on"):
            fabric.set_rate(0, 1.0, to_s)


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_new_rate_is_refused_by_the_name_of_its_link(bytes_per_s: float):
    with pytest.raises(ConfigError, match="'wire 0'"):
        Fabric(wires(1)).set_rate(0, bytes_per_s, 0.0)
