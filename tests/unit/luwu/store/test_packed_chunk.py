"""Chunks of integers that say how they are to be read."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.luwu.store.fixed_point import EXPONENT_BLOCK, add_as_integers, add_integers, format_of
from coarse.luwu.store.packed_chunk import (
    add_packed,
    chunk_exponents,
    num_blocks,
    pack,
    pack_bits,
    packed_elements,
)

LENGTHS = (1, 63, 64, 1023, 1024, 1025, 4096, 17_000, 40_000)
FORMATS = ("int64", "int32-switchml")


def drawn(length: int, num_workers: int, *, is_finite: bool = True) -> list[np.ndarray]:
    """Values whose sizes differ from block to block, and now and then no numbers."""
    rng = np.random.default_rng(length)
    scales = rng.integers(-60, 60, num_blocks(length)).repeat(EXPONENT_BLOCK)[:length]
    found = [np.ldexp(rng.normal(size=length), scales).astype(np.float32) for _ in range(num_workers)]
    if not is_finite:
        for values in found:
            places = rng.integers(0, length, 1 + length // 100)
            values[places] = rng.choice([np.nan, np.inf, -np.inf], len(places))
    return found


def packed(values: list[np.ndarray], name: str) -> list[np.ndarray]:
    form = format_of(name, len(values))
    exponents = np.maximum.reduce([chunk_exponents(one) for one in values])
    found = [np.empty(packed_elements(len(one)), form.storage) for one in values]
    for one, out in zip(values, found, strict=True):
        pack(form, one, exponents, out)
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_finite", [True, False], ids=["numbers", "and what is none"])
@pytest.mark.parametrize("length", LENGTHS)
def test_packed_chunks_have_the_sum_of_one_place_in_whatever_order(length: int, is_finite: bool, name: str) -> None:
    values = drawn(length, 4, is_finite=is_finite)
    wanted, found = np.empty(length, np.float32), np.empty(length, np.float32)
    add_as_integers(format_of(name, 4), values, wanted)
    parts = packed(values, name)
    for order in itertools.islice(itertools.permutations(parts), 5):
        halves = [np.empty_like(order[0]), np.empty_like(order[0])]
        add_integers(order[:1], halves[0])  # as two switches do, of which one has three workers below it
        add_integers(order[1:], halves[1])
        for payloads in (order, halves, halves[::-1]):
            add_packed(format_of(name, 4), payloads, found)
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_those_who_have_nothing_need_not_push(name: str) -> None:
    values = drawn(5000, 3)
    wanted, found = np.empty(5000, np.float32), np.empty(5000, np.float32)
    form = format_of(name, 7)
    add_as_integers(form, values, wanted)
    exponents = np.maximum.reduce([chunk_exponents(one) for one in values])
    parts = [np.empty(packed_elements(5000), form.storage) for _ in values]
    for one, out in zip(values, parts, strict=True):
        pack(form, one, exponents, out)
    add_packed(form, parts, found)
    assert found.tobytes() == wanted.tobytes()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_values_to_be_assigned_keep_their_bits(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    for name in FORMATS:
        form = format_of(name, 3)
        sent, passed = (np.empty(packed_elements(len(values)), form.storage) for _ in range(2))
        pack_bits(values, sent)
        add_integers([sent], passed)
        found = np.empty(len(values), np.float32)
        add_packed(form, [passed], found)
        assert found.tobytes() == values.tobytes()


def test_little_is_added_to_a_chunk() -> None:
    assert packed_elements(512 * 1024) <= 512 * 1024 * 1.002
    assert all(packed_elements(length) % 64 == 0 for length in LENGTHS)
