import numpy as np
import pytest

from benchmarks.contenders.coarse_numpy import fused_slices
from benchmarks.workloads import (
    DEFAULT_SETS,
    DEFAULT_SIZES,
    MANY_SMALL,
    MANY_SMALL_AT_ONCE,
    QUICK_SETS,
    QUICK_SIZES,
    Workload,
    effort_for,
    gradient_set,
    parse_workloads,
    single_tensor,
)


def test_a_size_is_read_with_its_unit():
    assert single_tensor("4KiB").nbytes == 4096
    assert single_tensor("98MiB").nbytes == 98 * 2**20
    assert single_tensor("1GiB").nbytes == 2**30


@pytest.mark.parametrize("size", ["", "4", "4KB", "0MiB", "6B", "-1MiB"])
def test_a_size_that_is_no_positive_multiple_of_a_float_is_refused(size):
    with pytest.raises(ValueError, match="a size is a positive multiple of 4 bytes"):
        single_tensor(size)


def test_an_unknown_gradient_set_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'vgg'; there are 200-small, 200-small-group, resnet50, bert-large"):
        gradient_set("vgg")


def test_both_lists_empty_is_refused():
    with pytest.raises(ValueError, match="nothing to measure"):
        parse_workloads("", "")


@pytest.mark.parametrize(("sizes", "sets"), [(DEFAULT_SIZES, DEFAULT_SETS), (QUICK_SIZES, QUICK_SETS)])
def test_the_defaults_are_valid(sizes, sets):
    expected = len(sizes.split(",")) + len(sets.split(","))
    assert len(parse_workloads(sizes, sets)) == expected


def test_gradients_come_last_layers_first():
    assert [name for name, _ in gradient_set("resnet50").tensors][:2] == ["fc.bias", "fc.weight"]


def test_views_share_the_flat_memory_and_cover_it():
    workload = Workload("w", (("a", (2, 3)), ("b", ()), ("c", (4,))))
    flat = np.zeros(workload.numel, dtype=np.float32)
    views = workload.views(flat)
    for number, view in enumerate(views, start=1):
        view[...] = number
    assert [view.shape for view in views] == [(2, 3), (), (4,)]
    assert flat.tolist() == [1] * 6 + [2] + [3] * 4


def test_one_tensor_is_one_message_whatever_its_size():
    assert len(single_tensor("420MiB").buckets) == 1


def test_buckets_of_a_model_cover_its_elements_without_gaps():
    workload = gradient_set("resnet50")
    buckets = workload.buckets
    assert len(buckets) > 2
    assert [bucket.stop for bucket in buckets] == [bucket.start for bucket in buckets[1:]] + [workload.numel]
    assert buckets[0].start == 0


def test_small_workloads_repeat_within_a_round_and_large_ones_do_not():
    assert effort_for(single_tensor("4KiB")).num_operations == 32
    assert effort_for(single_tensor("420MiB")).num_operations == 1


def test_every_workload_has_enough_rounds_for_a_median():
    for workload in parse_workloads(DEFAULT_SIZES, DEFAULT_SETS):
        assert 7 <= effort_for(workload).num_rounds <= 40
        assert effort_for(workload, quick=True).num_rounds == 3


def test_small_tensors_that_are_started_together_stay_apart():
    many, one = gradient_set(MANY_SMALL), single_tensor(MANY_SMALL_AT_ONCE)
    assert many.nbytes == one.nbytes
    assert [part.stop - part.start for part in many.buckets] == [1024] * 200
    assert fused_slices(many) == many.buckets
