"""Check of a strategy's wires on random buckets: correct sums, speed and loss."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coarse.errors import ConfigError
from coarse.protocol.clock import WallClock
from coarse.protocol.dtypes import DType, Op, narrowed, widen
from coarse.protocol.records import Descriptor
from coarse.simulation.checks.plans import WrongStrategy
from coarse.strategy.named import place_of
from coarse.strategy.sent import SentBucket, wire_of
from coarse.strategy.strategy import Strategy

_WORKERS = (1, 2, 3, 8)
_SIZES = (1, 10, 4_097)
_TIMED_ELEMENTS, _TIMES = 1 << 20, 3
_SUMMED_ELEMENTS, _SUMS = 1 << 14, 50
_ROUNDS = 3
_NUM_COUNTS = 2


class WireFigures(NamedTuple):
    """Figures of a wire on a bucket of 4 MiB of two workers; seconds measured in this process."""

    sent_share: float
    """Bytes that travel, as a share of those of the values."""
    encode_bytes_per_s: float
    decode_bytes_per_s: float
    error: float
    """Norm of what the first sum lacks, relative to that of the sum."""
    error_of_many: float
    """Error of 50 sums of equal values together: near 0 if losses come later, or were chance."""


def require_wires(make: Callable[[], Strategy]) -> WireFigures | None:
    """Return the figures of the strategy's wire; None if buckets travel as they are.

    Raises:
        WrongStrategy: the sent values cannot be summed or read, or differ between two ranks that are asked the same.
    """
    strategy, other = make(), make()
    if not strategy.has_wires:
        return None
    try:
        for num_workers in _WORKERS:
            for size in _SIZES:
                _require_rounds(strategy, other, size, num_workers)
        return _figures(strategy)
    except ConfigError:
        raise
    except Exception as error:
        function, line = place_of(error)
        said = f"{function} ({line}) raised {type(error).__name__}: {error}; correct the wire"
        raise WrongStrategy(f"{type(strategy).__name__}.wire: {said}", key="mode") from error


def _buckets(strategy: Strategy, size: int, num_workers: int) -> list[SentBucket]:
    """Return one bucket as all workers have it; () if it travels as it is."""
    descriptor = Descriptor("bucket", int(DType.FLOAT32), int(Op.AVERAGE), (size + _NUM_COUNTS,), 0)
    wire = wire_of(strategy, descriptor, _NUM_COUNTS)
    if wire is None:
        return []
    return [SentBucket(descriptor, wire, worker, num_workers, _NUM_COUNTS) for worker in range(num_workers)]


def _require_rounds(strategy: Strategy, other: Strategy, size: int, num_workers: int) -> None:
    """Check rounds of random values: two ranks read equal bits, and counts are exact."""
    rng = np.random.default_rng(size * 31 + num_workers)
    ranks = [_buckets(each, size, num_workers) for each in (strategy, other)]
    if not all(ranks):
        return
    for _ in range(_ROUNDS):
        values = [_values(rng, size) for _ in range(num_workers)]
        found = [np.empty(size + _NUM_COUNTS, np.float32) for _ in ranks]
        for place, buckets, out in zip((0, -1), ranks, found, strict=True):
            buckets[place].decode(_total(buckets, values), out)
        if not np.array_equal(found[0], found[1]):
            raise WrongStrategy(
                f"{type(strategy).__name__}.wire: two ranks read other values of one sum of {num_workers} workers; let "
                "encode and decode depend on their arguments alone",
                key="mode",
            )
        if not np.array_equal(found[0][size:], np.ones(_NUM_COUNTS, np.float32)):
            raise WrongStrategy(f"{type(strategy).__name__}.wire: counts came as {found[0][size:]}", key="mode")


def _values(rng: np.random.Generator, size: int) -> np.ndarray:
    values = rng.standard_normal(size + _NUM_COUNTS).astype(np.float32)
    values[size:] = 1.0
    values.flags.writeable = False
    return values


def _total(buckets: list[SentBucket], values: list[np.ndarray]) -> np.ndarray:
    """Combine what all workers send, as devices do."""
    sent = buckets[0].sent
    dtype, op = DType(sent.dtype), Op(sent.op)
    total = np.zeros(sent.shape, dtype.accumulator)
    for bucket, given in zip(buckets, values, strict=True):
        encoded = np.empty(sent.shape, dtype.storage)
        bucket.encode(given, encoded)
        total += widen(encoded, dtype)
    if op is Op.AVERAGE:
        total /= len(buckets)
    return total if dtype.accumulator == dtype.storage else narrowed(total, dtype)


def _figures(strategy: Strategy) -> WireFigures | None:
    """Return rates, of the fastest of a few runs, and the loss of the first round."""
    buckets = _buckets(strategy, _TIMED_ELEMENTS, 2)
    if not buckets:
        return None
    rng = np.random.default_rng(1)
    values = [_values(rng, _TIMED_ELEMENTS) for _ in buckets]
    wanted = (values[0][:_TIMED_ELEMENTS] + values[1][:_TIMED_ELEMENTS]) / 2
    total, found = _total(buckets, values), np.empty(_TIMED_ELEMENTS + _NUM_COUNTS, np.float32)
    buckets[0].decode(total, found)
    error = float(np.linalg.norm(found[:_TIMED_ELEMENTS] - wanted) / np.linalg.norm(wanted))
    encoded = np.empty_like(total)
    encode_s = min(_seconds(lambda: buckets[0].encode(values[0], encoded)) for _ in range(_TIMES))
    decode_s = min(_seconds(lambda: buckets[0].decode(total, found)) for _ in range(_TIMES))
    nbytes = values[0].nbytes
    share = buckets[0].sent.nbytes / nbytes
    return WireFigures(share, nbytes / encode_s, nbytes / decode_s, error, _error_of_many(strategy))


def _error_of_many(strategy: Strategy) -> float:
    """Return the error of 50 sums of equal values together."""
    buckets, size = _buckets(strategy, _SUMMED_ELEMENTS, 2), _SUMMED_ELEMENTS
    rng = np.random.default_rng(2)
    values = [_values(rng, size) for _ in buckets]
    wanted = np.mean([given[:size] for given in values], 0)
    summed, found = np.zeros(size), np.empty(size + _NUM_COUNTS, np.float32)
    for _ in range(_SUMS if buckets else 0):
        buckets[-1].decode(_total(buckets, values), found)
        summed += found[:size]
    return float(np.linalg.norm(summed - _SUMS * wanted) / np.linalg.norm(_SUMS * wanted)) if buckets else 0.0


def _seconds(function: Callable[[], object]) -> float:
    clock = WallClock()
    began_s = clock.now_s()
    function()
    return clock.now_s() - began_s

