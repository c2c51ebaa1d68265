# Pure: no MPI, threads, clock or environment.
"""Sums of an owner under on-demand communication, as they lie in device memory."""

import numpy as np

from coarse.odc.layout import OdcDeclaration
from coarse.odc.wide_sum import WideSum
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum


def sums_in(declaration: OdcDeclaration, unit: int, raw: np.ndarray) -> WideSum | np.ndarray:
    """Return the sums of a unit in bytes of memory."""
    if declaration.sum is Sum.INT64:
        return WideSum(raw.view(np.int64).reshape(2, -1), declaration.top)
    found: np.ndarray = raw.view(DType(declaration.units[unit].dtype).accumulator)
    return found
