"""A link's time by size, alone and in a path."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.links import Link, path_alone_s


def link(table: tuple[tuple[int, float], ...] = (), *, name: str = "wire", bytes_per_s: float = 1e9) -> Link:
    return Link(name=name, latency_s=1e-5, bytes_per_s=bytes_per_s, table=table)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[int, float], ...]:
    steps = draw(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-9, 1e-2)), max_size=6))
    rows, nbytes, seconds = [], 0, 0.0
    for more_bytes, more_s in steps:
        nbytes, seconds = nbytes + more_bytes, seconds + more_s
        rows.append((nbytes, seconds))
    return tuple(rows)


def test_without_a_table_a_transfer_takes_latency_plus_bytes_over_rate():
    assert link().alone_s(10**6) == pytest.approx(1e-5 + 1e-3)
    assert link().rate_bytes_per_s(10**6) == 1e9


def test_a_measured_size_takes_its_measured_time():
    rows = ((1000, 2e-6), (10**6, 2e-3), (10**7, 1.1e-2))
    for nbytes, seconds in rows:
        assert link(rows).streaming_s(nbytes) == pytest.approx(seconds)


def test_between_measured_sizes_time_is_linear():
    rows = ((1000, 1e-5), (3000, 3e-4))
    assert link(rows).streaming_s(1500) == pytest.approx(1e-5 + (3e-4 - 1e-5) / 4)


def test_below_the_table_time_is_in_proportion_and_beyond_it_the_rate_is_full():
    measured = link(((1000, 4e-6), (2000, 6e-6)))
    assert measured.streaming_s(500) == pytest.approx(2e-6)
    assert measured.streaming_s(2000 + 10**6) == pytest.approx(6e-6 + 1e-3)


def test_nothing_is_faster_than_the_rate_whatever_the_table_says():
    assert link(((10**6, 1e-9),)).streaming_s(10**6) == pytest.approx(1e-3)


def test_no_bytes_take_the_latency_alone():
    assert link(((10, 1.0),)).alone_s(0) == 1e-5


@given(tables(), st.integers(0, 10**7), st.integers(0, 10**7))
def test_more_bytes_never_take_less_time(table: tuple[tuple[int, float], ...], one: int, other: int):
    measured = link(table)
    fewer, more = sorted((one, other))
    assert measured.streaming_s(fewer) <= measured.streaming_s(more) * (1 + 1e-12)


@given(tables(), st.integers(1, 10**7))
def test_a_transfer_draws_at_most_the_rate_of_its_link(table: tuple[tuple[int, float], ...], nbytes: int):
    measured = link(table)
    assert measured.rate_bytes_per_s(nbytes) <= measured.bytes_per_s * (1 + 1e-12)
    assert nbytes / measured.rate_bytes_per_s(nbytes) == pytest.approx(measured.streaming_s(nbytes))


def test_a_path_takes_all_latencies_and_the_slowest_rate():
    path = [link(name="up"), link(name="across", bytes_per_s=1e8), link(name="down", bytes_per_s=1e10)]
    assert path_alone_s(path, 10**6) == pytest.approx(3e-5 + 1e-2)
    assert path_alone_s(path, 0) == pytest.approx(3e-5)
    assert path_alone_s([], 10**6) == 0


def test_a_path_that_takes_a_link_twice_gets_half_its_rate():
    both_ways = Link(name="both ways", latency_s=0, bytes_per_s=1e9)
    assert path_alone_s([both_ways, both_ways], 10**6) == pytest.approx(2e-3)


@pytest.mark.parametrize("latency_s", [-1e-9, math.nan, math.inf])
def test_an_impossible_latency_is_refused_by_name(latency_s: float):
    with pytest.raises(ConfigError, match=r"'wire'.*latency") as refused:
        Link(name="wire", latency_s=latency_s, bytes_per_s=1.0)
    assert refused.value.key == "latency_s"


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_rate_is_refused_by_name(bytes_per_s: float):
    with pytest.raises(ConfigError, match=r"'wire'.*rate") as refused:
        Link(name="wire", latency_s=0.0, bytes_per_s=bytes_per_s)
    assert refused.value.key == "bytes_per_s"


@pytest.mark.parametrize(
    "table",
    [((0, 1.0),), ((-5, 1.0),), ((5, 0.0),), ((5, math.nan),), ((5, math.inf),), ((5, 1.0), (5, 2.0)),
     ((5, 1.0), (6, 1.0)), ((5, 1.0), (4, 2.0)), ((5, 2.0), (6, 1.0))],
)  # fmt: skip
def test_a_table_that_does_not_grow_is_refused_by_name(table: tuple[tuple[int, float], ...]):
    with pytest.raises(ConfigError, match=r"'wire'.*grow") as refused:
        link(table)
    assert refused.value.key == "table"
