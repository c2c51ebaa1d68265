# Pure: no MPI, threads, clock or environment.
"""Runs of a tensor's elements, as storage takes and gives them, and the shares of their writers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from coarse.protocol.dtypes import DType


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPiece:
    """Elements [first, first + numel) of the named tensor, flattened row by row.

    A device that keeps some shards of a tensor writes several; a whole tensor is one piece.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    data: np.ndarray
    """Data of any shape, of `dtype.storage` (bfloat16 as uint16), or uint8 for bare bytes of a region."""
    first: int = 0
    """First element of the flattened tensor that is here."""

    def __post_init__(self) -> None:
        if self.data.dtype not in (self.dtype.storage, np.dtype(np.uint8)):
            raise TypeError(
                f"{self.name!r}: a piece of a {self.dtype.label} tensor is an array of "
                f"{self.dtype.storage} or of uint8 bytes, got {self.data.dtype}"
            )
        if self.data.nbytes % self.dtype.itemsize or not (
            0 <= self.first <= self.first + self.numel <= prod(self.shape)
        ):
            raise ValueError(
                f"{self.name!r}: {self.data.nbytes} bytes from element {self.first} on do not lie "
                f"within a tensor of shape {list(self.shape)} and {self.dtype.label}"
            )

    @property
    def numel(self) -> int:
        """Number of elements in this piece."""
        return self.data.nbytes // self.dtype.itemsize

    @property
    def is_whole(self) -> bool:
        """True if this piece is all of its tensor."""
        return self.numel == prod(self.shape)


def whole_tensor(name: str, array: np.ndarray, dtype: DType) -> TensorPiece:
    """Return all of `array` as one piece; bfloat16 comes as uint16."""
    return TensorPiece(name=name, dtype=dtype, shape=array.shape, data=array)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredTensor:
    """Tensor as it was read back."""

    dtype: DType
    array: np.ndarray
    """Array in the tensor's shape, of `dtype.storage` (bfloat16 as uint16); writable."""


def share_of(
    nbytes_of: Mapping[str, int], member: int, num_members: int, of_first: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the names that one of several equal holders writes, with bytes about equal to the others'.

    The largest come first, each to the holder with the fewest bytes; whole tensors, so that a part file can be read by
    itself. The result is the same on every rank, for any order of the mapping. Names `of_first` are the first member's
    in any case: holders may have other values of these.
    """
    loads = [0] * num_members
    loads[0] = sum(nbytes_of[name] for name in of_first)
    own = sorted(of_first) if member == 0 else []
    for name in sorted(nbytes_of.keys() - set(of_first), key=lambda name: (-nbytes_of[name], name)):
        lightest = min(range(num_members), key=lambda index: (loads[index], index))
        loads[lightest] += nbytes_of[name]
        if lightest == member:
            own.append(name)
    return tuple(own)
