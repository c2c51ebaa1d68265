# Pure: no MPI, threads, clock or environment.
"""A run of a tensor's elements, as storage takes and gives it, and who writes which tensors."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from coarse.protocol.dtypes import DType


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPiece:
    """The elements [first, first + numel) of the named tensor, flattened row by row.

    A device that keeps some shards of a tensor writes several; a whole tensor is one piece.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    data: np.ndarray
    """Any shape, of `dtype.storage` (bfloat16 as uint16), or uint8 for bare bytes of a region."""
    first: int = 0
    """The first element of the flattened tensor that is here."""

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
        """Elements in this piece."""
        return self.data.nbytes // self.dtype.itemsize

    @property
    def is_whole(self) -> bool:
        """Whether this piece is all of its tensor."""
        return self.numel == prod(self.shape)


def whole_tensor(name: str, array: np.ndarray, dtype: DType) -> TensorPiece:
    """All of `array` as one piece; bfloat16 comes as uint16."""
    return TensorPiece(name=name, dtype=dtype, shape=array.shape, data=array)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredTensor:
    """A tensor as it was read back."""

    dtype: DType
    array: np.ndarray
    """In the tensor's shape, of `dtype.storage` (bfloat16 as uint16); writable."""


def share_of(
    nbytes_of: Mapping[str, int], member: int, num_members: int, of_first: Collection[str] = ()
) -> tuple[str, ...]:
    """The names that one of several equal holders writes, about as many bytes as each other's.

    The largest first, each to whoever has the fewest bytes; whole tensors, so that a part file
    can be read by itself. The same on every rank, whatever the order of the mapping. Names `of_first`
    are the first member's in any case: holders may have other values of these.
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
