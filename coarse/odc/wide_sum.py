# Pure: no MPI, threads, clock or environment.
"""Sums over an absolute window of 80 bits, two integers an element: the same bits in any order.

[Note: the window] With `top`, 18 by default, an element holds multiples of 2**(top - 80) whose addends are below
2**top. An addend is rounded to such a multiple, half to even, and its integer is cut in two: the upper 40 bits are
added to `high`, the rest, between -2**39 and 2**39, to `low`. So 2**20 addends fit, every sum is exact but for the
rounding of each addend, by at most 2**(top - 81), and `totals` rounds once more, to float64. The design follows
ReproBLAS' absolute bins (Demmel and Nguyen, 2015), two of them.

[Note: what does not fit] NaN, infinities and values of 2**top and above are not added. `add` returns their places, and
`mark` writes the result into a sum: NaN, or an infinity. No sum of fitting addends looks like that.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from coarse.strategy.sharding import SUM_TOP

WORD_BITS: Final = 40
MOST_ADDENDS: Final = 1 << 20
_BLOCK: Final = 8192
"""Elements that are added at once: all temporaries stay in a core's first cache."""
_MAGIC: Final = np.float64(3 << 51)
"""Addend that rounds a float64 below 2**51 to a whole number, half to even, which stands in its lowest bits."""
_MAGIC_BITS: Final = np.array([_MAGIC]).view(np.int64)[0]
_LEAST_MARK: Final = 1 << 61
"""Number above every sum of lower words."""


class Unrepresentable(IntEnum):
    """Reason why a value was not added."""

    NAN = 0
    PLUS_INFINITY = 1
    MINUS_INFINITY = 2
    ABOVE = 3
    """2**top or more."""
    BELOW = 4
    """-2**top or less."""


class SkippedValue(NamedTuple):
    """Value that was not added."""

    element: int
    kind: int
    """Unrepresentable of the value."""


def combined(one: int, other: int) -> int:
    """Return the misfit of a sum that has both kinds: infinities of both signs make NaN.

    Floating point does so, too.
    """
    if one == other:
        return one
    kinds = {one, other}
    signs = {_sign(kind) for kind in kinds}
    if Unrepresentable.NAN in kinds or signs == {1, -1}:
        return Unrepresentable.NAN
    return Unrepresentable.PLUS_INFINITY if signs == {1} else Unrepresentable.MINUS_INFINITY


def _sign(kind: int) -> int:
    signs = {Unrepresentable.NAN: 0, Unrepresentable.PLUS_INFINITY: 1, Unrepresentable.ABOVE: 1}
    return signs.get(Unrepresentable(kind), -1)


@dataclass(frozen=True, eq=False)
class WideSum:
    """Sums of n elements, as they lie in memory: (2, n) int64, upper words and then lower ones."""

    words: np.ndarray
    top: int = SUM_TOP

    def add(self, values: np.ndarray, *, is_first: bool) -> list[SkippedValue]:
        """Add (n,) of float32 or float64; `is_first`: the earlier sum is forgotten.

        Returns:
            The values that did not fit, and were counted as 0.
        """
        found: list[SkippedValue] = []
        scratch = np.empty((2, min(_BLOCK, len(values))))
        for begin in range(0, len(values), _BLOCK):
            block = values[begin : begin + _BLOCK]
            misfits = self._misfits(block)
            if misfits is not None:
                found += [SkippedValue(begin + element, kind) for element, kind in misfits]
                block = block.copy()
                block[[element for element, _ in misfits]] = 0.0
            self._add_block(begin, block, scratch, is_first=is_first)
        return found

    def _misfits(self, block: np.ndarray) -> list[SkippedValue] | None:
        limit = 2.0**self.top
        if block.max() < limit and block.min() > -limit:  # not so where there is a NaN
            return None
        with np.errstate(invalid="ignore"):
            places = np.flatnonzero(~(np.abs(block) < limit))
        return [SkippedValue(int(place), _kind_of(float(block[place]))) for place in places]

    def _add_block(self, begin: int, block: np.ndarray, scratch: np.ndarray, *, is_first: bool) -> None:
        upper, rest = scratch[0, : len(block)], scratch[1, : len(block)]
        high, low = self.words[:, begin : begin + len(block)]
        np.multiply(block, 2.0 ** (WORD_BITS - self.top), out=rest, dtype=np.float64)
        np.add(rest, _MAGIC, out=upper)
        _take(upper, high, is_first=is_first)
        upper -= _MAGIC
        rest -= upper
        rest *= 2.0**WORD_BITS
        rest += _MAGIC
        _take(rest, low, is_first=is_first)

    def merge(self, words: np.ndarray, *, is_first: bool) -> None:
        """Add another sum over the same window, (2, n) int64 without marks."""
        if is_first:
            self.words[...] = words
        else:
            self.words[...] += words

    def mark(self, found: list[SkippedValue]) -> None:
        """Mark complete sums with values that did not fit; see [Note: what does not fit]."""
        for element, kind in found:
            before = int(self.words[1, element]) - _LEAST_MARK
            self.words[1, element] = _LEAST_MARK + (kind if before < 0 else combined(before, kind))

    def totals(self) -> np.ndarray:
        """Return the sums as (n,) float64, each rounded once; NaN and infinities where they are marked."""
        high, low = self.words
        is_marked = low >= _LEAST_MARK
        unit = 2.0 ** (self.top - 2 * WORD_BITS)
        carried = high + (low >> WORD_BITS)
        rest = low & ((1 << WORD_BITS) - 1)
        found: np.ndarray = carried.astype(np.float64)
        is_large = np.abs(carried) > 1 << 53
        found *= 2.0**WORD_BITS
        found += rest  # both terms are exact, so the sum is rounded once
        found *= unit
        for place in np.flatnonzero(is_large & ~is_marked):
            exact = (int(carried[place]) << WORD_BITS) + int(rest[place])
            found[place] = exact / (1 << (2 * WORD_BITS - self.top))
        for place in np.flatnonzero(is_marked):
            found[place] = _value_of(int(low[place]) - _LEAST_MARK)
        return found


def _take(biased: np.ndarray, word: np.ndarray, *, is_first: bool) -> None:
    """Add the whole numbers that stand in the lowest bits of (n,) float64, see _MAGIC."""
    integers = biased.view(np.int64)
    if is_first:
        np.subtract(integers, _MAGIC_BITS, out=word)
    else:
        word += integers
        word -= _MAGIC_BITS


def _kind_of(value: float) -> Unrepresentable:
    if value != value:  # NaN
        return Unrepresentable.NAN
    if value in (float("inf"), float("-inf")):
        return Unrepresentable.PLUS_INFINITY if value > 0 else Unrepresentable.MINUS_INFINITY
    return Unrepresentable.ABOVE if value > 0 else Unrepresentable.BELOW


def _value_of(kind: int) -> float:
    return {0: float("nan"), 1: float("inf"), 3: float("inf")}.get(kind, float("-inf"))
