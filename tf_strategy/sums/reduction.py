"""Which tensors one reduction has, and which of them share which bucket."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from coarse.parallel.data.bucket_plan import BucketPlan, plan_buckets
from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.places import Place, fingerprint_of


@dataclass(frozen=True)
class Tensors:
    """The tensors of one reduction, in order; reductions that are alike use the same keys, one after the other."""

    op: Op
    wires: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def fingerprint(self) -> int:
        """A number below 2^62 that tells reductions apart, equal on all ranks."""
        return fingerprint_of(repr((int(self.op), [int(wire) for wire in self.wires], self.shapes)).encode())

    @cached_property
    def each_nbytes(self) -> tuple[int, ...]:
        """Bytes of each tensor."""
        return tuple(wire.itemsize * prod(shape) for wire, shape in zip(self.wires, self.shapes, strict=True))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.each_nbytes)

    def plans(self, bucket_bytes: int) -> list[BucketPlan]:
        """Buckets of tensors, named "0", "1" and so on, in the order of backward: the last first."""
        sizes = [
            (str(number), int(wire), prod(shape))
            for number, (wire, shape) in enumerate(zip(self.wires, self.shapes, strict=True))
        ]
        prefix = f"tensorflow/{self.fingerprint:x}/"
        return plan_buckets(sizes, prefix=prefix, op=self.op, bucket_bytes=bucket_bytes, num_ranks=1)

    @cached_property
    def place(self) -> Place:
        """What workers say to one another when they are about to reduce these."""
        kinds = [f"{wire.label}{list(shape)}" for wire, shape in zip(self.wires, self.shapes, strict=True)]
        return Place("a sum" if self.op is Op.SUM else "a mean", tuple(kinds))


def members_of(plan: BucketPlan) -> tuple[int, ...]:
    """The numbers of a bucket's tensors."""
    return tuple(int(name) for name in plan.names)
