# Pure: no MPI, threads, clock or environment.
"""Chunk of a unit as integers, with the facts to read their sum by, as it travels between hosts.

It has the integers, the exponent of each block, and a 1, and all are added over those who push it; so the sum tells its
number of addends, and that many times each exponent. A chunk of values that one worker alone pushes, to be assigned,
has the bits of float32 in place of integers, and a 0.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from coarse.luwu.store.fixed_point import EXPONENT_BLOCK, FixedPoint, add_integers, exponents_of

_ALIGN: Final = 64
"""Number of elements that a packed chunk has a multiple of."""
_BLOCK: Final = 16 * EXPONENT_BLOCK
"""Elements that are packed at once: they stay in a core's cache."""


def num_blocks(num_elements: int) -> int:
    """Return the number of blocks of a chunk, each of which has an exponent."""
    return -(-num_elements // EXPONENT_BLOCK)


def packed_elements(num_elements: int) -> int:
    """Return the number of elements of a packed chunk of so many values."""
    return -(-(num_elements + num_blocks(num_elements) + 1) // _ALIGN) * _ALIGN


def chunk_exponents(values: np.ndarray) -> np.ndarray:
    """Return `exponent_of` each block of (n,) float32, as (num_blocks(n),) int64."""
    whole = len(values) // EXPONENT_BLOCK * EXPONENT_BLOCK
    found = [exponents_of(values[:whole].reshape(-1, EXPONENT_BLOCK)).reshape(-1)]
    if whole < len(values):
        found.append(exponents_of(values[whole:].reshape(1, -1)).reshape(-1))
    return np.concatenate(found)


def encode_blocks(
    form: FixedPoint,
    values: np.ndarray,  # (n,) float32
    exponents: np.ndarray,  # (num_blocks(n),), as agreed
    out: np.ndarray,  # (n,) or more of form.storage, of which the first n are overwritten
) -> None:
    """Write values as integers, each block by its own exponent."""
    for begin in range(0, len(values), _BLOCK):
        end = min(begin + _BLOCK, len(values))
        out[begin:end] = form.encode(values[begin:end], _by_element(exponents, begin, end))


def decode_blocks(
    form: FixedPoint,
    total: np.ndarray,  # (n,) of form.storage, or more
    exponents: np.ndarray,  # (num_blocks(n),)
    out: np.ndarray,  # (n,) float32, overwritten
) -> None:
    """Write sums of integers as values."""
    for begin in range(0, len(out), _BLOCK):
        end = min(begin + _BLOCK, len(out))
        out[begin:end] = form.decode(total[begin:end], _by_element(exponents, begin, end))


def _by_element(exponents: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return the exponent of each element of [begin, end), the first of which begins a block."""
    return np.repeat(exponents[begin // EXPONENT_BLOCK : num_blocks(end)], EXPONENT_BLOCK)[: end - begin]


def pack(
    form: FixedPoint,
    values: np.ndarray,  # (n,) float32
    exponents: np.ndarray,  # (num_blocks(n),), as agreed
    out: np.ndarray,  # (packed_elements(n),) of form.storage, overwritten
) -> None:
    """Write a chunk of gradients in the form that travels."""
    num = len(values)
    encode_blocks(form, values, exponents, out)
    out[num : num + len(exponents)] = exponents
    out[num + len(exponents)] = 1
    out[num + len(exponents) + 1 :] = 0


def pack_bits(
    values: np.ndarray,  # (n,) float32
    out: np.ndarray,  # (packed_elements(n),) integers, overwritten
) -> None:
    """Write a chunk of values to be assigned in the form that travels."""
    out[: len(values)] = values.view(np.int32)
    out[len(values) :] = 0


def add_packed(
    form: FixedPoint,
    payloads: Sequence[np.ndarray],  # (packed_elements(n),) of form.storage each
    out: np.ndarray,  # (n,) float32, overwritten
) -> None:
    """Write the sum of packed chunks, as values again."""
    num = len(out)
    tail = np.empty(packed_elements(num) - num, form.storage)
    add_integers([payload[num:] for payload in payloads], tail)
    blocks = num_blocks(num)
    num_addends = int(tail[blocks])
    if not num_addends:
        out.view(np.int32)[:] = payloads[0][:num]
        return
    total = np.empty(num, form.storage)
    add_integers([payload[:num] for payload in payloads], total)
    decode_blocks(form, total, tail[:blocks] // num_addends, out)
