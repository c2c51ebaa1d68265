# Pure: no MPI, threads, clock or environment.
"""Sums of float32 blocks as integers, which have the same bits for any order of addends.

All who add to a block first agree on its exponent: the largest `exponent_of` of each one's values.

[Note: marks] NaN and infinities, which integers cannot hold, stand among them as one of the three least integers of
their type, which no sum of values is. Adding looks for them first, so that a sum is marked where an addend is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

ZERO_EXPONENT: Final = -149
"""Exponent of a block without a finite value other than 0; 2**-149 is the least float32 above it."""
_LARGEST_EXPONENT: Final = 128
_NAN, _PLUS, _MINUS = range(3)
"""Marks: the least integer of a type, and the two above it."""
_NUM_MARKS: Final = 3
_BLOCK: Final = 16_384
"""Elements that are added at once: they stay in a core's cache."""
EXPONENT_BLOCK: Final = 1024
"""Elements that share an exponent."""
_INT64_BITS: Final = 39
"""Bits below a block's exponent that an int64 sum keeps; so 2**24 addends, less one, do not overflow."""


@dataclass(frozen=True)
class FixedPoint:
    """Conversion of float32 values to integers and back.

    There are two formats (`int32_switchml`, `int64`). With n addends and the agreed exponent e, a sum differs from the
    exact one by at most `error_bound(n, e)`, before it is rounded to float32.
    """

    storage: np.dtype[np.signedinteger]
    """Type of the integers."""
    largest: int
    """Whole number that 2**exponent becomes."""
    most_addends: int
    """Number of addends that may be added without an overflow."""

    def encode(self, values: np.ndarray, exponent: int | np.ndarray) -> np.ndarray:
        """Return float32 as integers of the same shape, rounded to nearest; marks where they are not finite.

        Args:
            values: (n,), or (m, n) of m blocks.
            exponent: the block's, or (m, 1).

        Raises:
            ValueError: a value is larger than 2**exponent, which was not agreed for this block then; an exponent that
                `exponent_of` never gives.
        """
        if not np.all((np.asarray(exponent) >= ZERO_EXPONENT) & (np.asarray(exponent) <= _LARGEST_EXPONENT)):
            raise ValueError(f"exponents of float32 are {ZERO_EXPONENT} to {_LARGEST_EXPONENT}, got {exponent}")
        wide = values.astype(np.float64)
        is_finite = np.isfinite(wide)
        if not is_finite.all():
            wide[~is_finite] = 0.0
        wide *= self.largest * np.exp2(-np.float64(exponent))
        if (too_large := np.abs(wide) > self.largest).any():
            place = tuple(np.argwhere(too_large)[0])
            wanted = int(np.broadcast_to(exponent, wide.shape)[place])
            raise ValueError(
                f"a value of {abs(float(values[place])):g} came in a block of exponent {wanted}, which holds up to "
                f"{2.0**wanted:g}; let all workers agree on the largest exponent first"
            )
        found = np.rint(wide, out=wide).astype(self.storage)
        if not is_finite.all():
            least = np.iinfo(self.storage).min
            for mark, is_marked in ((_NAN, np.isnan(values)), (_PLUS, values == np.inf), (_MINUS, values == -np.inf)):
                found[is_marked] = least + mark
        return found

    def decode(self, total: np.ndarray, exponent: int | np.ndarray) -> np.ndarray:
        """Return sums as float32, in blocks as in `encode`.

        A sum is NaN where NaN was added, or infinities of both signs. An int64 is rounded to float64 on the way.
        """
        wide = total.astype(np.float64)
        wide *= np.exp2(np.float64(exponent)) / self.largest
        with np.errstate(over="ignore"):
            values = wide.astype(np.float32)
        if _has_marks(total):
            least = np.iinfo(self.storage).min
            for mark, value in ((_NAN, np.nan), (_PLUS, np.inf), (_MINUS, -np.inf)):
                values[total == least + mark] = value
        return values

    def error_bound(self, num_addends: int, exponent: int) -> float:
        """Return the largest difference of a sum of so many values from the exact one.

        Each value is rounded by half a unit, and a little more where a scale is no power of two.
        """
        return num_addends * (0.5 + 2.0**-20) * 2.0**exponent / self.largest


def int32_switchml(num_workers: int) -> FixedPoint:
    """Return SwitchML's format: all of an int32 for so many addends (NSDI 2021, section 3.7; LuWu 3.2.2).

    The scale is a whole number over 2**exponent, for SwitchML's own, rounded, can overflow by one.

    Raises:
        ValueError: more workers than an int32 can tell apart.
    """
    limit = np.iinfo(np.int32).max
    if not 1 <= num_workers <= limit:
        raise ValueError(f"num_workers must be from 1 to {limit}, got {num_workers}")
    return FixedPoint(np.dtype(np.int32), (limit - _NUM_MARKS) // num_workers, num_workers)


def int64() -> FixedPoint:
    """Return the format of 39 bits below a block's largest value, for up to 2**24 - 1 addends.

    It has the same sum for any number of workers.
    """
    return FixedPoint(np.dtype(np.int64), 2**_INT64_BITS, 2 ** (63 - _INT64_BITS) - 1)


def exponent_of(values: np.ndarray) -> int:
    """Return the least e such that all finite ones of (n,) float32 are at most 2**e."""
    return int(exponents_of(values)[..., 0]) if len(values) else ZERO_EXPONENT


def exponents_of(blocks: np.ndarray) -> np.ndarray:
    """Return `exponent_of` each of (m, n) float32, as (m, 1) int64."""
    largest = np.abs(blocks)
    if not (is_finite := np.isfinite(largest)).all():
        largest[~is_finite] = 0.0
    mantissa, exponent = np.frexp(largest.max(axis=-1, keepdims=True))
    found = np.where(mantissa == 0.0, ZERO_EXPONENT, exponent.astype(np.int64) - (mantissa == 0.5))
    return np.maximum(found, ZERO_EXPONENT)


def _has_marks(integers: np.ndarray) -> bool:
    return integers.size > 0 and bool(integers.min() < np.iinfo(integers.dtype).min + _NUM_MARKS)


def _add_integers(total: np.ndarray, addend: np.ndarray) -> None:
    """Add onto `total`; see [Note: marks]."""
    if not (_has_marks(total) or _has_marks(addend)):
        total += addend
        return
    least = np.iinfo(total.dtype).min
    ours, theirs = total < least + _NUM_MARKS, addend < least + _NUM_MARKS
    found = np.where(ours, total, addend)  # where one of them is marked, that one's mark
    found[ours & theirs & (total != addend)] = least + _NAN
    is_value = ~(ours | theirs)
    found[is_value] = total[is_value] + addend[is_value]
    total[:] = found


def add_in_order(
    payloads: Sequence[np.ndarray],  # (n,) float32 each
    out: np.ndarray,  # (n,) float32, overwritten
) -> None:
    """Write the float32 sum, added one after the other, as `float32` slots give that keep payloads apart."""
    with np.errstate(all="ignore"):
        for begin in range(0, len(out), _BLOCK):
            block = out[begin : begin + _BLOCK]
            parts = [payload[begin : begin + _BLOCK] for payload in payloads]
            if len(parts) == 1:
                block[:] = parts[0]
                continue
            np.add(parts[0], parts[1], out=block)
            for part in parts[2:]:
                block += part


def add_integers(
    payloads: Sequence[np.ndarray],  # (n,) integers each, of one type
    out: np.ndarray,  # (n,) of it, overwritten
) -> None:
    """Write the sum of integers that were encoded by one exponent, marks and all."""
    for begin in range(0, len(out), _BLOCK):
        block = out[begin : begin + _BLOCK]
        block[:] = payloads[0][begin : begin + _BLOCK]
        for payload in payloads[1:]:
            _add_integers(block, payload[begin : begin + _BLOCK])


def largest_of(
    payloads: Sequence[np.ndarray],  # (n,) each
    out: np.ndarray,  # (n,), overwritten
) -> None:
    """Write the largest of each element, by which exponents are agreed on."""
    out[:] = payloads[0]
    for payload in payloads[1:]:
        np.maximum(out, payload, out=out)


Adder = Callable[[Sequence[np.ndarray], np.ndarray], None]
"""Function that combines (n,) of each worker into another one, which is overwritten."""
COMBINE: Final[dict[str, Adder]] = {"float32": add_in_order, "integers": add_integers, "max": largest_of}
"""Functions by which a switch combines its children's values."""


def format_of(name: str, num_workers: int) -> FixedPoint:
    """Return the format of the sums `int64` or `int32-switchml`."""
    return int64() if name == "int64" else int32_switchml(num_workers)


def adder_of(name: str, num_workers: int) -> Adder:
    """Return the function that adds (n,) float32 of each worker into another one.

    Its format is `float32`, `int64` or `int32-switchml`.
    """
    if name == "float32":
        return add_in_order
    return partial(add_as_integers, format_of(name, num_workers))


def add_as_integers(
    form: FixedPoint,
    payloads: Sequence[np.ndarray],  # (n,) float32 each
    out: np.ndarray,  # (n,) float32, overwritten
) -> None:
    """Write the sum, added as integers block by block: the same bits for any order of payloads."""
    whole = len(out) // EXPONENT_BLOCK * EXPONENT_BLOCK
    for begin in (*range(0, whole, _BLOCK), whole):
        end = min(begin + _BLOCK, whole) if begin < whole else len(out)
        if begin == end:
            continue
        width = min(EXPONENT_BLOCK, end - begin)
        parts = [payload[begin:end].reshape(-1, width) for payload in payloads]
        exponents = np.maximum.reduce([exponents_of(part) for part in parts])
        total = form.encode(parts[0], exponents)
        for part in parts[1:]:
            _add_integers(total, form.encode(part, exponents))
        out[begin:end] = form.decode(total, exponents).reshape(-1)
