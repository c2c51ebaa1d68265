# Pure: no MPI, threads, clock or environment.
"""Buckets behind a strategy's wires, as workers and devices exchange them; live and simulated."""

from typing import Any

import numpy as np

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType, Op, narrowed, widen
from coarse.protocol.plan import Tensor
from coarse.protocol.records import Descriptor, key_of
from coarse.strategy.strategy import Strategy
from coarse.strategy.wires import Wire

COHORT_RANKS = 64
"""Ranks that a half type counts exactly, also as a share of any number of ranks: it tells 63/n from 64/n."""
_ABSENT = 1 << 20
"""Count of NaN among whole numbers: more than there are workers."""
_WIRED = (DType.FLOAT32, DType.FLOAT64)
_ELEMENTS = tuple(kind.label for kind in DType if kind is not DType.UINT8)


def wire_of(strategy: Strategy, descriptor: Descriptor, num_exact: int = 0) -> Wire | None:
    """Return the wire of a bucket; None where it travels as it is.

    Args:
        strategy: The strategy that chooses the wire.
        descriptor: The bucket.
        num_exact: Elements at its end that are counts.

    Raises:
        ConfigError: `wire` returned something else, or a type that devices do not add.
    """
    num_values = descriptor.num_elements - num_exact
    is_wired = descriptor.dtype in _WIRED and descriptor.op in (Op.SUM, Op.AVERAGE) and num_values > 0
    if not (strategy.has_wires and is_wired):
        return None
    found: Any = strategy.wire(Tensor(key_of(descriptor.name), num_values, DType(descriptor.dtype).itemsize))
    if found is None or (isinstance(found, Wire) and found.element in _ELEMENTS):
        return found
    raise ConfigError(
        f"{type(strategy).__name__}.wire must return a Wire whose element is one of {', '.join(_ELEMENTS)}, or None, "
        f"got {found!r}; correct the strategy",
        key="mode",
    )


def sent_of(descriptor: Descriptor, wire: Wire, num_workers: int, num_exact: int = 0) -> Descriptor:
    """Return the descriptor that is registered in place of a bucket.

    It describes the wire's form of the bucket's values, with the counts behind them.
    """
    dtype = DType[wire.element.upper()]
    num_elements = wire.num_elements(descriptor.num_elements - num_exact, num_workers)
    if type(num_elements) is not int or num_elements < 1:
        raise ConfigError(
            f"{type(wire).__name__}.num_elements must return a whole number from 1, got {num_elements!r}; correct the "
            "wire",
            key="mode",
        )
    shape = (num_elements + num_exact * _columns(dtype, num_workers),)
    op = Op(descriptor.op) if wire.is_linear and not dtype.is_integer else Op.SUM
    return descriptor._replace(dtype=int(dtype), op=int(op), shape=shape)


def sent_nbytes(strategy: Strategy, descriptor: Descriptor, num_workers: int, num_exact: int = 0) -> int:
    """Return the bytes that a worker gives of a bucket."""
    wire = wire_of(strategy, descriptor, num_exact)
    return descriptor.nbytes if wire is None else sent_of(descriptor, wire, num_workers, num_exact).nbytes


def name_in_turn(name: str, turn: int) -> str:
    """Return a bucket's name in a turn.

    Where sums come late, rounds take turns at as many buckets as are under way.
    """
    return f"{name}/late {turn}" if turn else name


class SentBucket:
    """One worker's bucket behind its wire, which encodes values for travel and decodes the sum."""

    def __init__(self, descriptor: Descriptor, wire: Wire, worker: int, num_workers: int, num_exact: int = 0) -> None:
        self.sent = sent_of(descriptor, wire, num_workers, num_exact)
        self._wire = wire
        self._worker = worker
        self._num_workers = num_workers
        self._num_exact = num_exact
        self._num_values = descriptor.num_elements - num_exact
        self._dtype = DType(self.sent.dtype)
        self._num_columns = _columns(self._dtype, num_workers)
        self._divisor = num_workers if descriptor.op == Op.AVERAGE and self.sent.op == Op.SUM else 1
        self._scale = num_workers if self.sent.op == Op.AVERAGE else 1
        self._state: Any = None
        self._state_before: Any = None

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write what travels of a bucket's values and counts, (n,), to `out`, (m,)."""
        self._state_before, given = self._state, values[: self._num_values]
        given.flags.writeable = False  # of this view alone
        encoded, self._state = self._wire.encode(given, self._worker, self._num_workers, self._state)
        num_sent = len(out) - self._num_exact * self._num_columns
        if not isinstance(encoded, np.ndarray) or encoded.shape != (num_sent,) or encoded.dtype != out.dtype:
            came = f"{encoded.dtype}{list(encoded.shape)}" if isinstance(encoded, np.ndarray) else repr(encoded)
            raise ConfigError(
                f"{type(self._wire).__name__}.encode must return {out.dtype}[{num_sent}], got {came}; correct the wire",
                key="mode",
            )
        out[:num_sent] = encoded
        if self._num_exact:
            self._encode_counts(values[self._num_values :], out[num_sent:])

    def take_back(self) -> None:
        """Forget the values that were encoded last and never added."""
        self._state = self._state_before

    def decode(self, total: np.ndarray, out: np.ndarray) -> None:
        """Write the combined values and counts to `out`, (n,)."""
        num_sent = len(total) - self._num_exact * self._num_columns
        values = self._wire.decode(total[:num_sent], self._num_values, self._num_workers)
        is_array = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64)
        if not is_array or values.shape != (self._num_values,):
            came = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else repr(values)
            raise ConfigError(
                f"{type(self._wire).__name__}.decode must return {self._num_values} values of float32 or float64, got "
                f"{came}; correct the wire",
                key="mode",
            )
        out[: self._num_values] = values
        if self._divisor > 1:
            out[: self._num_values] /= out.dtype.type(self._divisor)
        if self._num_exact:
            self._decode_counts(total[num_sent:], out[self._num_values :])

    def _encode_counts(self, counts: np.ndarray, out: np.ndarray) -> None:
        """Write counts of 0, 1 or NaN, (k,), as rows in which a worker fills the column of its cohort."""
        rows = out.reshape(len(counts), self._num_columns)
        rows[:] = 0
        if self._dtype.is_integer:
            rows[:, 0] = np.where(np.isnan(counts), _ABSENT, np.nan_to_num(counts))
            return
        column = self._worker // COHORT_RANKS if self._num_columns > 1 else 0
        rows[:, column] = narrowed(counts.astype(np.float32), self._dtype)

    def _decode_counts(self, came: np.ndarray, out: np.ndarray) -> None:
        rows = came.reshape(len(out), self._num_columns)
        if self._dtype.is_integer:
            totals = rows[:, 0]
            out[:] = np.where(totals >= _ABSENT, np.nan, totals / self._divisor)
            return
        wide = widen(rows.reshape(-1), self._dtype).reshape(rows.shape).astype(np.float64)
        out[:] = np.round(wide * self._scale).sum(1) / (self._scale * self._divisor)


def _columns(dtype: DType, num_workers: int) -> int:
    """Return the number of elements that count one thing over all workers: half types count few."""
    return -(-num_workers // COHORT_RANKS) if dtype.itemsize <= 2 else 1
