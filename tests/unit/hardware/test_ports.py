"""Ports: what queues in front of the links, in which order it goes, and what its wait hides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.hardware.links import Link
from coarse.hardware.ports import Ports

LATENCY_S = 0.25


def ports_on(num_links: int, *, latency_s: float = 0.0) -> Ports:
    return Ports([Link(name=f"wire {i}", latency_s=latency_s, bytes_per_s=1e6) for i in range(num_links)])


def ends(ports: Ports) -> dict[int, float]:
    ended: list[tuple[float, int]] = []
    while (next_s := ports.next_s()) is not None:
        ended += ports.advance(next_s)
    assert [end_s for end_s, _ in ended] == sorted(end_s for end_s, _ in ended)
    return {transfer: end_s for end_s, transfer in ended}


def test_a_port_sends_one_thing_after_the_other():
    ports = ports_on(1)
    for transfer in range(3):
        ports.submit(transfer, "port", (0,), 1_000_000, 0.0)
    assert ends(ports) == {0: pytest.approx(1.0), 1: pytest.approx(2.0), 2: pytest.approx(3.0)}


def test_two_ports_share_a_link():
    ports = ports_on(1)
    for transfer, port in enumerate(["one", "two"]):
        ports.submit(transfer, port, (0,), 1_000_000, 0.0)
    assert ends(ports) == {0: pytest.approx(2.0), 1: pytest.approx(2.0)}


def test_the_most_urgent_goes_first_and_of_equals_the_first_that_came():
    ports = ports_on(1)
    for transfer, priority in enumerate([0, 1, 5, 1]):
        ports.submit(transfer, "port", (0,), 1_000_000, 0.0, priority=priority)
    assert ends(ports) == {0: pytest.approx(1.0), 2: pytest.approx(2.0), 1: pytest.approx(3.0), 3: pytest.approx(4.0)}


def test_what_is_under_way_is_not_interrupted():
    ports = ports_on(1)
    ports.submit(0, "port", (0,), 1_000_000, 0.0)
    assert ports.advance(0.5) == []
    ports.submit(1, "port", (0,), 1_000_000, 0.5, priority=9)
    assert ends(ports) == {0: pytest.approx(1.0), 1: pytest.approx(2.0)}


def test_a_wait_hides_the_start_up():
    ports = ports_on(1, latency_s=LATENCY_S)
    for transfer in range(3):
        ports.submit(transfer, "port", (0,), 1_000_000, 0.0)
    assert ends(ports) == {number: pytest.approx(LATENCY_S + number + 1.0) for number in range(3)}


def test_a_short_wait_hides_only_a_part_of_the_start_up():
    ports = ports_on(1, latency_s=LATENCY_S)
    ports.submit(0, "port", (0,), 1_000_000, 0.0)
    ports.advance(1.15)
    ports.submit(1, "port", (0,), 1_000_000, 1.15)
    assert ends(ports) == {0: pytest.approx(1.25), 1: pytest.approx(1.15 + LATENCY_S + 1.0)}


def test_without_a_wait_nothing_is_hidden():
    ports = ports_on(1, latency_s=LATENCY_S)
    ports.submit(0, "port", (0,), 1_000_000, 0.0)
    first_s = ends(ports)[0]
    ports.submit(1, "port", (0,), 1_000_000, first_s)
    assert ends(ports) == {1: pytest.approx(2 * first_s)}


def test_a_queue_keeps_the_size_of_pieces():
    half_speed = Link(name="wire", latency_s=0.0, bytes_per_s=1e6, table=((1000, 0.002),))
    ports = Ports([half_speed])
    for transfer in range(2):
        ports.submit(transfer, "port", (0,), 100_000, 0.0, piece_bytes=1000)
    assert ends(ports) == {0: pytest.approx(0.2), 1: pytest.approx(0.4)}


def test_nothing_is_due_where_nothing_moves():
    ports = ports_on(1)
    assert ports.next_s() is None
    assert ports.advance(7.0) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 10**6), st.integers(0, 3)), max_size=12))
def test_every_link_has_moved_all_bytes_and_a_full_one_never_rests(submitted: list[tuple[int, int, int]]):
    ports = ports_on(1)
    for transfer, (port, nbytes, priority) in enumerate(submitted):
        ports.submit(transfer, port, (0,), nbytes, 0.0, priority=priority)
    ended = ends(ports)
    total = sum(nbytes for _, nbytes, _ in submitted)
    assert sorted(ended) == list(range(len(submitted)))
    assert ports.fabric.bytes_moved(0) == total
    assert max(ended.values(), default=0.0) == pytest.approx(total / 1e6)


def test_what_ends_next_is_told_one_instant_at_a_time_and_not_before_it_is_due():
    ports = ports_on(3)
    for transfer, (link, nbytes) in enumerate([(0, 1_000_000), (1, 1_000_000), (2, 3_000_000)]):
        ports.submit(transfer, link, (link,), nbytes, 0.0)
    assert ports.next_ended(0.5) == []
    assert ports.next_ended(9.0) == [(1.0, 0), (1.0, 1)]
    assert ports.fabric.now_s == 1.0
    assert ports.next_ended(9.0) == [(3.0, 2)]
    assert ports.next_ended(9.0) == []


def test_what_a_freed_port_ends_at_the_same_instant_is_told_with_it():
    ports = ports_on(1)
    ports.submit(0, "port", (0,), 1_000_000, 0.0)
    ports.submit(1, "port", (0,), 0, 0.0)
    assert ports.next_ended(9.0) == [(1.0, 0), (1.0, 1)]
