import math

import pytest

from benchmarks.buckets import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ddp_buckets
from coarse.hardware.models import bert_large, resnet50

MIB = 2**20


def test_the_first_bucket_is_small_and_the_rest_fill_up():
    assert ddp_buckets([MIB // 2] * 4) == [slice(0, 2), slice(2, 4)]


def test_a_tensor_that_crosses_the_limit_closes_its_own_bucket():
    assert ddp_buckets([100 * MIB, 100 * MIB, 1]) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_nothing_to_send_needs_no_bucket():
    assert ddp_buckets([]) == []


@pytest.mark.parametrize("model", [resnet50, bert_large])
def test_buckets_are_those_that_torch_makes(model):
    torch = pytest.importorskip("torch")
    shapes = [shape for _, shape in reversed(model().shapes)]
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    limits = [DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES]
    expected, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, limits)
    buckets = ddp_buckets([4 * math.prod(shape) for shape in shapes])
    assert [list(range(bucket.start, bucket.stop)) for bucket in buckets] == expected
