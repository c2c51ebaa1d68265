"""Sums of float32 blocks as integers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.luwu.store.fixed_point import (
    EXPONENT_BLOCK,
    FixedPoint,
    add_in_order,
    add_integers,
    adder_of,
    exponent_of,
    int32_switchml,
    int64,
)

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
ANY = st.floats(width=32)


def added(blocks: list[np.ndarray], how: FixedPoint) -> np.ndarray:
    """The blocks' sum, as a switch makes it."""
    exponent = max(exponent_of(block) for block in blocks)
    parts = [how.encode(block, exponent) for block in blocks]
    total = np.empty_like(parts[0])
    add_integers(parts, total)
    return how.decode(total, exponent)


def blocks_of(columns: list[list[float]]) -> list[np.ndarray]:
    return [np.array(column, np.float32) for column in columns]


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=9))
def test_a_sum_is_as_near_to_the_exact_one_as_stated(columns: list[list[float]]) -> None:
    blocks = blocks_of(columns)
    exponent = max(map(exponent_of, blocks))
    for how in (int64(), int32_switchml(len(blocks))):
        found = added(blocks, how)
        for place in range(3):
            exact = sum(Fraction(float(block[place])) for block in blocks)
            half_ulp = float(np.spacing(np.abs(found[place])))
            error = abs(float(Fraction(float(found[place])) - exact))
            assert error <= how.error_bound(len(blocks), exponent) + half_ulp


@given(st.lists(st.lists(ANY, min_size=2, max_size=2), min_size=1, max_size=5), st.randoms())
def test_the_bits_are_the_same_in_whatever_order(columns: list[list[float]], random: object) -> None:
    blocks = blocks_of(columns)
    for how in (int64(), int32_switchml(len(blocks))):
        wanted = added(blocks, how).tobytes()
        for order in itertools.islice(itertools.permutations(blocks), 24):
            assert added(list(order), how).tobytes() == wanted


@given(st.lists(ANY, min_size=1, max_size=6))
def test_what_is_not_finite_is_as_ieee_adds_it(values: list[float]) -> None:
    blocks = blocks_of([[value] for value in values])
    found = added(blocks, int64())[0]
    if all(map(math.isfinite, values)):
        assert not math.isnan(found)
    elif any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        assert math.isnan(found)
    else:
        assert found == next(value for value in values if math.isinf(value))


def test_int64_is_exact_for_values_within_fifteen_bits_of_the_largest() -> None:
    rng = np.random.default_rng(1)
    scales = 2.0 ** rng.integers(-14, 1, (50, 100))
    blocks = list((rng.integers(2**23, 2**24, (50, 100)) * scales).astype(np.float32))
    exact = [sum(Fraction(float(block[place])) for block in blocks) for place in range(100)]
    assert [float(value) for value in added(blocks, int64())] == [float(np.float32(float(value))) for value in exact]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7, 8, 1000])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_values_of_all_workers_do_not_overflow(num_workers: int, sign: int) -> None:
    block = np.full(4, sign * 2.0**20, np.float32)
    found = added([block] * num_workers, int32_switchml(num_workers))
    np.testing.assert_allclose(found, num_workers * block, rtol=1e-7)
    how = int64()
    total = how.encode(block, 20).astype(object) * how.most_addends
    assert abs(total[0]) <= np.iinfo(np.int64).max


def test_a_result_beyond_float32_is_infinite() -> None:
    block = np.full(1, np.finfo(np.float32).max, np.float32)
    assert added([block, block], int64())[0] == np.inf


def test_exponents_hold_what_they_say() -> None:
    for value, exponent in ((0.0, -149), (1.0, 0), (1.5, 1), (2.0, 1), (-3.0, 2), (2.0**-149, -149), (3.4e38, 128)):
        assert exponent_of(np.array([value, 0.0], np.float32)) == exponent
    assert exponent_of(np.array([np.nan, np.inf, 4.0], np.float32)) == 2
    assert exponent_of(np.array([], np.float32)) == -149


def test_a_block_of_a_larger_exponent_than_agreed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of 5 came in a block of exponent 2, which holds up to 4; .* agree"):
        int64().encode(np.array([5.0], np.float32), 2)
    for exponent in (-150, 129):
        with pytest.raises(ValueError, match="-149 to 128"):
            int64().encode(np.zeros(1, np.float32), exponent)
    with pytest.raises(ValueError, match="num_workers"):
        int32_switchml(0)


def test_float32_slots_add_in_the_workers_order() -> None:
    payloads = [np.array([value], np.float32) for value in (1e8, 1.0, -1e8)]
    total = np.empty_like(payloads[0])
    add_in_order(payloads, total)
    assert total[0] == np.float32(np.float32(1e8) + np.float32(1.0)) - np.float32(1e8)
    assert payloads[0][0] == np.float32(1e8)


@pytest.mark.parametrize("length", [1, 1023, 1024, 5000, 16_384, 40_000])
def test_long_arrays_are_added_block_by_block(length: int) -> None:
    rng = np.random.default_rng(length)
    arrays = [np.ldexp(rng.normal(size=length), rng.integers(-60, 60, length)).astype(np.float32) for _ in range(3)]
    arrays[1][length // 2] = np.nan
    out = np.empty(length, np.float32)
    adder_of("int64", 3)(arrays, out)
    for begin in range(0, length, EXPONENT_BLOCK):
        blocks = [array[begin : begin + EXPONENT_BLOCK] for array in arrays]
        assert out[begin : begin + EXPONENT_BLOCK].tobytes() == added(blocks, int64()).tobytes()
