# Pure: no MPI, threads, clock or environment.
"""Wires: forms in which a bucket's values travel, and rules that read the sum from what came.

Devices and workers add what travels element by element, regardless of its meaning. So a cast is summed as it is. What
cannot be added, such as a worker's largest values and their places, lies in a row of each worker's own: the sum of
disjoint rows is all of them.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coarse.errors import ConfigError
from coarse.protocol import override
from coarse.protocol.dtypes import DType, narrowed, widen

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Wire:
    """Rule of the form in which a bucket's values travel.

    Subclass it as a frozen dataclass; all methods are pure. Buckets of float32 and float64 have a wire, those of other
    types travel as they are.
    """

    element: str = "float32"
    """Type of the elements that travel and are added: float16, bfloat16, float32, float64, int32 or int64."""
    is_linear: bool = False
    """True if `decode` of a mean is the mean of the decoded parts. Then devices divide by the workers where
    gradients are averaged, before they round. Else elements are summed, and what `decode` returns is divided."""
    encode_bytes_per_s: float = math.inf
    """Bytes of values that a worker encodes in a second, for predictions; `coarse check --strategy` measures them."""
    decode_bytes_per_s: float = math.inf
    """Bytes of values that a worker decodes in a second, for predictions."""

    def num_elements(self, num_values: int, num_workers: int) -> int:
        """Return the number of elements that travel for so many values."""
        return num_values

    def encode(self, values: np.ndarray, worker: int, num_workers: int, state: Any) -> tuple[np.ndarray, Any]:  # noqa: ANN401
        """Return a worker's contribution, and the next state of the bucket on this worker.

        Args:
            values: This worker's values, (n,) float32 or float64; not to be written to.
            worker: This worker's number.
            num_workers: Workers of the job.
            state: The state that the last call returned for the bucket; None at first.

        Returns:
            (m,) of `element`, with m by `num_elements`; bfloat16 as uint16, see `narrowed`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def decode(self, total: np.ndarray, num_values: int, num_workers: int) -> np.ndarray:
        """Return the sum of all workers' values.

        It has no state: all that it has to know must travel.

        Args:
            total: The sum of the workers' encoded values, (m,) of `element`; their mean where `is_linear` and gradients
                are
                averaged. Of one worker alone under `Feedback`, and without those that have joined: a wire that has to
                know how
                many contributed sends a 1.
            num_values: n.
            num_workers: Workers of the job, as in `encode`.

        Returns:
            (n,) float32 or float64.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode()")


@dataclass(frozen=True, kw_only=True)
class Cast(Wire):
    """Values in a narrower type, which devices add in float32 and round once."""

    element: str = "float16"
    is_linear: ClassVar[bool] = True  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.element not in _FLOATS:
            raise ConfigError(
                f"values are cast to one of {', '.join(_FLOATS)}, got {self.element!r}; correct it", key="element"
            )

    @override
    def encode(self, values: np.ndarray, worker: int, num_workers: int, state: Any) -> tuple[np.ndarray, Any]:  # noqa: ANN401
        dtype = DType[self.element.upper()]
        wide = values.astype(np.float32, copy=False) if dtype is DType.BFLOAT16 else values
        return narrowed(wide, dtype), None

    @override
    def decode(self, total: np.ndarray, num_values: int, num_workers: int) -> np.ndarray:
        return widen(total, DType[self.element.upper()])


class Rows(Wire):
    """A row of int32 for each worker, of any meaning: first a mark that it contributed, then what `pack` returned."""

    element: str = "int32"

    def row_elements(self, num_values: int) -> int:
        """Return the number of int32 that `pack` returns for so many values."""
        raise NotImplementedError(f"{type(self).__name__} has no row_elements()")

    def pack(self, values: np.ndarray) -> np.ndarray:
        """Return a row of values, (n,) float32: (k,) int32 with k by `row_elements`.

        `array.view(np.int32)` has the bits of any array of 4 bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no pack()")

    def add(self, row: np.ndarray, total: np.ndarray) -> None:
        """Add the values of a row, (k,) int32, to the sum, (n,) float32."""
        raise NotImplementedError(f"{type(self).__name__} has no add()")

    @override
    def num_elements(self, num_values: int, num_workers: int) -> int:
        return num_workers * (1 + self.row_elements(num_values))

    @override
    def encode(self, values: np.ndarray, worker: int, num_workers: int, state: Any) -> tuple[np.ndarray, Any]:  # noqa: ANN401
        rows = np.zeros((num_workers, 1 + self.row_elements(len(values))), np.int32)
        rows[worker, 0] = 1
        rows[worker, 1:] = self.pack(values.astype(np.float32, copy=False))
        return rows.reshape(-1), None

    def decode(self, total: np.ndarray, num_values: int, num_workers: int) -> np.ndarray:
        """Return the sum of all rows, added in the order of workers, so that all have equal bits."""
        values = np.zeros(num_values, np.float32)
        for row in total.reshape(num_workers, -1):
            if row[0]:
                self.add(row[1:], values)
        return values


@dataclass(frozen=True, kw_only=True)
class TopK(Rows):
    """Each worker's largest values by magnitude, and their places (Lin et al., Deep Gradient Compression, 2018)."""

    share: float = 0.01
    """Share of a bucket's values that travels; at least one does."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"a share of values is above 0 and at most 1, got {self.share}", key="share")

    def num_kept(self, num_values: int) -> int:
        """Return the number of a bucket's values that travel."""
        return min(num_values, max(1, round(self.share * num_values)))

    def row_elements(self, num_values: int) -> int:
        """Return twice the number of values that travel: places, and values."""
        return 2 * self.num_kept(num_values)

    def pack(self, values: np.ndarray) -> np.ndarray:
        """Return the places of the values, rising, and the values there."""
        count = self.num_kept(len(values))
        places = np.arange(len(values))
        if count < len(values):
            places = np.sort(np.argpartition(np.abs(values), len(values) - count)[len(values) - count :])
        return np.concatenate([places.astype(np.int32), values[places].view(np.int32)])

    @override
    def add(self, row: np.ndarray, total: np.ndarray) -> None:
        places, values = row.reshape(2, -1)
        total[places] += values.view(np.float32)


@dataclass(frozen=True, kw_only=True)
class Feedback(Wire):
    """Another wire, with what it loses of a worker's values added to those of the next round (error feedback).

    What is lost of values that are no numbers, or infinite, is forgotten.
    """

    inner: Wire

    @property
    @override
    def element(self) -> str:  # type: ignore[override]
        return self.inner.element

    @property
    @override
    def is_linear(self) -> bool:  # type: ignore[override]
        return self.inner.is_linear

    @property
    @override
    def encode_bytes_per_s(self) -> float:  # type: ignore[override]
        return self.inner.encode_bytes_per_s

    @property
    @override
    def decode_bytes_per_s(self) -> float:  # type: ignore[override]
        return self.inner.decode_bytes_per_s

    @override
    def num_elements(self, num_values: int, num_workers: int) -> int:
        return self.inner.num_elements(num_values, num_workers)

    @override
    def encode(self, values: np.ndarray, worker: int, num_workers: int, state: Any) -> tuple[np.ndarray, Any]:  # noqa: ANN401
        lost, of_inner = (None, None) if state is None else state
        wanted = values if lost is None else values + lost
        encoded, of_inner = self.inner.encode(wanted, worker, num_workers, of_inner)
        with np.errstate(invalid="ignore", over="ignore"):
            lost = wanted - self.inner.decode(encoded, len(values), num_workers)
        np.nan_to_num(lost, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        return encoded, (lost, of_inner)

    @override
    def decode(self, total: np.ndarray, num_values: int, num_workers: int) -> np.ndarray:
        return self.inner.decode(total, num_values, num_workers)
