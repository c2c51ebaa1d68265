"""The memory of one reduction's buckets."""

from collections.abc import Sequence

import numpy as np

from coarse.parallel.data.bucket_plan import BucketPlan
from coarse.parallel.data.synchroniser import Synchroniser
from tf_strategy.sums.reduction import Tensors, members_of


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
