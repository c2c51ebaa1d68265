# Pure: no MPI, threads, clock or environment.
"""Operations on arrays by numpy: what the ones on a GPU must equal, and what the stand-in for a GPU carries out."""

from collections.abc import Sequence

import numpy as np

from coarse.protocol.dtypes import DType, Op
from coarse.storage.reduce import reduce, reduce_local


class HostArrays:
    """See Arrays; each call is over when it returns."""

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """See Arrays."""
        np.copyto(target, source.reshape(target.shape))

    def zero(self, target: np.ndarray) -> None:
        """See Arrays."""
        target[...] = 0

    def reduce(
        self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], dtype: DType, op: Op, divisor: int
    ) -> None:
        """See Arrays."""
        reduce(sources, targets, dtype, op, divisor)

    def combine(self, sources: Sequence[np.ndarray], target: np.ndarray, dtype: DType, op: Op) -> None:
        """See Arrays."""
        target[:] = reduce_local(sources, len(target), dtype, op)
