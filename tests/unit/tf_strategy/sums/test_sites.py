"""What is filled into buckets comes out of them again."""

import numpy as np

from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.reduction import Tensors
from tf_strategy.sums.sites import Site

TENSORS = Tensors(
    Op.SUM, (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT32), ((2, 3), (4,), (5,), ())
)


class Doubled:
    """A synchroniser whose buckets are plain memory."""

    def __init__(self) -> None:
        self.memories: list[np.ndarray] = []

    def memory_of(self, descriptor):
        memory = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        self.memories.append(memory)
        return memory


def test_each_tensor_has_a_place_of_its_own_in_its_bucket():
    synchroniser = Doubled()
    site = Site(TENSORS, TENSORS.plans(1 << 20), synchroniser)
    storages = [np.float32, np.float64, np.uint16, np.float32]
    arrays = [
        (np.arange(int(np.prod(shape)), dtype=storage) + 10 * number).reshape(shape)
        for number, (shape, storage) in enumerate(zip(TENSORS.shapes, storages, strict=True))
    ]
    for bucket, members in enumerate(site.members):
        site.fill(bucket, [arrays[number] for number in members])
    for bucket, members in enumerate(site.members):
        for number, result in zip(members, site.results(bucket), strict=True):
            assert result.base is synchroniser.memories[bucket]
            assert np.array_equal(result.reshape(arrays[number].shape), arrays[number])
    assert sum(site.nbytes_of(bucket) for bucket in range(site.num_buckets)) == TENSORS.nbytes
