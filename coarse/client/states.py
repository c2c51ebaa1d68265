"""Device memory that is not synchronised: where parameters and optimizer state may live.

Whoever reads it beside the worker, as a snapshot does that is being copied, adds a guard, which is asked before it is
overwritten.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod

import numpy as np

from coarse.errors import MismatchError
from coarse.protocol.dtypes import DType


@dataclass(frozen=True, kw_only=True, eq=False)
class StateArray:
    """A named array in the memory of this worker's own device."""

    name: str
    dtype: DType
    offset: int
    array: np.ndarray
    """Array in its shape, of `dtype.storage` (bfloat16 as uint16)."""


class DeviceStates:
    """The state arrays of one worker, by name."""

    def __init__(self, client: int, device: int, allocate: Callable[[int, int], tuple[int, np.ndarray]]) -> None:
        """`allocate` gives memory of a device, (n,) uint8, and its offset."""
        self._client = client
        self.device = device
        """The device that keeps them: the client's own."""
        self._allocate = allocate
        self.guards: list[Callable[[Collection[str] | None], None]] = []
        """Each returns once some arrays, or all, may be overwritten."""
        self.arrays: dict[str, StateArray] = {}
        self._by_address: dict[int, StateArray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """Return the array of a name, zeros at first; the same one for each call.

        Raises:
            MismatchError: the name has another shape or type.
            CapacityError: the device is full.
        """
        known = self.arrays.get(name)
        if known is None:
            nbytes = prod(shape) * dtype.itemsize
            offset, region = self._allocate(self.device, nbytes)
            region[...] = 0  # the memory may have been used before
            array = region.view(dtype.storage).reshape(shape)
            known = StateArray(name=name, dtype=dtype, offset=offset, array=array)
            self.arrays[name] = known
            if array.size:
                self._by_address[array.__array_interface__["data"][0]] = known
        if (known.dtype, known.array.shape) != (dtype, tuple(shape)):
            raise MismatchError(
                f"rank {self._client}: the state array {name!r} is "
                f"{label(known.dtype, known.array.shape)} and was asked for as {label(dtype, shape)}"
                "; use another name for another shape or type"
            )
        return known.array

    def at(self, address: int) -> StateArray | None:
        """Return the array whose first element lies at an address of this process."""
        return self._by_address.get(address)

    def before_overwrite(self, names: Collection[str] | None) -> None:
        """Return once these arrays, or all, may be overwritten.

        Raises:
            ValueError: a name is no array's.
        """
        if names is not None:
            self.require_known(names)
        for guard in self.guards:
            guard(names)

    def require_known(self, names: Collection[str]) -> None:
        """Raise ValueError unless every name is a state array's."""
        unknown = [name for name in names if name not in self.arrays]
        if unknown:
            raise ValueError(
                f"rank {self._client}: {unknown[0]!r} is no state array (there are "
                f"{len(self.arrays)}); give names that coarse.state_array() was called with"
            )


def label(dtype: DType, shape: tuple[int, ...]) -> str:
    """Return a type and shape for people: `float32[3, 4]`."""
    return f"{dtype.label}{list(shape)}"
