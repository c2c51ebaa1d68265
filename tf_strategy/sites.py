"""What one reduction synchronises: which tensors share which bucket, and the buckets' memory."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coarse.dtypes import DType, Op
from coarse.gradients.bucket_plan import BucketPlan, plan_buckets
from coarse.gradients.synchroniser import Synchroniser
from tf_strategy.places import Place


@dataclass(frozen=True)
class Tensors:
    """The tensors of one reduction, in order; reductions that are alike use the same keys, one after the other."""

    op: Op
    wires: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def fingerprint(self) -> int:
        """A number below 2^62 that tells reductions apart, equal on all ranks."""
        text = repr((int(self.op), [int(wire) for wire in self.wires], self.shapes)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(wire.itemsize * prod(shape) for wire, shape in zip(self.wires, self.shapes, strict=True))

    def plans(self, bucket_bytes: int) -> list[BucketPlan]:
        """Buckets of tensors, named "0", "1" and so on, in the order of backward: the last first."""
        sizes = [
            (str(number), int(wire), prod(shape))
            for number, (wire, shape) in enumerate(zip(self.wires, self.shapes, strict=True))
        ]
        prefix = f"tensorflow/{self.fingerprint:x}/"
        return plan_buckets(sizes, prefix=prefix, op=self.op, bucket_bytes=bucket_bytes)

    @cached_property
    def place(self) -> Place:
        """What workers say to one another when they are about to reduce these."""
        kinds = [f"{wire.label}{list(shape)}" for wire, shape in zip(self.wires, self.shapes, strict=True)]
        return Place("a sum" if self.op is Op.SUM else "a mean", tuple(kinds))


class Site:
    """The buckets of one kind of reduction."""

    def __init__(self, tensors: Tensors, plans: Sequence[BucketPlan], synchroniser: Synchroniser) -> None:
        self.tensors = tensors
        self.synchroniser = synchroniser
        self.num_buckets = len(plans)
        self._views: list[list[np.ndarray]] = []
        """By bucket the place of each of its tensors."""
        self.members = tuple(members_of(plan) for plan in plans)
        """By bucket the numbers of its tensors."""
        for plan in plans:
            memory = synchroniser.memory_of(plan.descriptor)
            slots = plan.layout.slots
            self._views.append(
                [memory[slot.offset_elements : slot.offset_elements + slot.num_elements] for slot in slots]
            )

    def fill(self, bucket: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a bucket's tensors, of any shape, into its memory."""
        for view, array in zip(self._views[bucket], arrays, strict=True):
            view[:] = array.reshape(-1).view(view.dtype)

    def nbytes_of(self, bucket: int) -> int:
        """Bytes of a bucket's tensors."""
        return sum(view.nbytes for view in self._views[bucket])

    def results(self, bucket: int) -> list[np.ndarray]:
        """Where a bucket's results lie, flat, until it is filled again."""
        return self._views[bucket]


def members_of(plan: BucketPlan) -> tuple[int, ...]:
    """The numbers of a bucket's tensors."""
    return tuple(int(name) for name in plan.names)
