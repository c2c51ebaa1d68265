# Pure: no MPI, threads, clock or environment.
"""Sum of contributions to a slice: in a stated order, in the accumulator type, and rounded once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coarse.protocol.dtypes import DType, Op, narrowed
from coarse.storage.reduce import accumulate, reduce_local, scale


class SliceSum:
    """Sum of one element type, one operation and one number of contributions."""

    def __init__(self, dtype: DType, op: Op, num_contributions: int) -> None:
        """Take the type and the operation.

        Raises:
            TypeError: an average of integers, which would be rounded.
        """
        if op is Op.AVERAGE and dtype.is_integer:
            raise TypeError(f"an average of {dtype.label} would be rounded; use Op.SUM, or convert to a floating type")
        self._dtype = dtype
        self._op = op
        self._divisor = num_contributions if op is Op.AVERAGE else 1

    @property
    def accumulator(self) -> np.dtype[Any]:
        """Type of sums that are not rounded yet."""
        return self._dtype.accumulator

    def of_members(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        """Return the combination of sources in a new array of the accumulator type.

        Each source is (n,) in the storage type.
        """
        return reduce_local(sources, len(sources[0]), self._dtype, self._op)

    def add(self, total: np.ndarray, addend: np.ndarray) -> None:
        """Combine `addend` with `total` in place, in the accumulator type."""
        accumulate(total, addend, self._op)

    def of_nodes(self, sums: Sequence[np.ndarray]) -> np.ndarray:
        """Return the result in the storage type; the first of the sums is overwritten."""
        total = sums[0]
        for other in sums[1:]:
            self.add(total, other)
        return self.rounded(total)

    def rounded(self, total: np.ndarray) -> np.ndarray:
        """Return a complete sum in the storage type; `total` may be overwritten."""
        scale(total, self._divisor, out=total)
        return narrowed(total, self._dtype)
