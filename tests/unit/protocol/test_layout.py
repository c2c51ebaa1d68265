from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.layout import FlatLayout, TensorSlot, flat_layout, fuse

counts = st.lists(st.integers(0, 10**4), max_size=30)


def named(numbers):
    return [(f"t{position}", number) for position, number in enumerate(numbers)]


def test_tensors_lie_in_order_at_multiples_of_the_alignment():
    assert flat_layout([("a", 3), ("b", 0), ("c", 8), ("d", 1)], align_elements=4) == FlatLayout(
        (TensorSlot("a", 0, 3), TensorSlot("b", 4, 0), TensorSlot("c", 4, 8), TensorSlot("d", 12, 1)), 16
    )


def test_no_tensors_need_no_buffer():
    assert flat_layout([], align_elements=64) == FlatLayout((), 0)


@given(counts, st.integers(1, 257))
def test_a_layout_keeps_order_and_sizes_aligned_without_overlap(numbers, align_elements):
    layout = flat_layout(named(numbers), align_elements=align_elements)
    assert [(slot.name, slot.num_elements) for slot in layout.slots] == named(numbers)
    ends = [slot.offset_elements + slot.num_elements for slot in layout.slots]
    for end, slot in zip(ends, layout.slots[1:], strict=False):
        assert end <= slot.offset_elements < end + align_elements
    assert all(slot.offset_elements % align_elements == 0 for slot in layout.slots)
    assert layout.num_elements % align_elements == 0
    assert 0 <= layout.num_elements - max(ends, default=0) < align_elements


def test_neighbours_are_fused_up_to_the_bucket():
    entries = [("a", 3), ("b", 5), ("c", 1), ("huge", 20), ("d", 8), ("e", 0)]
    assert fuse(entries, bucket_bytes=8) == (("a", "b"), ("c",), ("huge",), ("d", "e"))


@given(counts, st.integers(1, 3 * 10**4))
def test_fusing_keeps_every_name_once_in_order(numbers, bucket_bytes):
    entries = named(numbers)
    buckets = fuse(entries, bucket_bytes=bucket_bytes)
    assert list(chain.from_iterable(buckets)) == [name for name, _ in entries]
    assert all(buckets)


@given(counts, st.integers(1, 3 * 10**4))
def test_a_bucket_is_above_the_limit_only_for_one_tensor_alone(numbers, bucket_bytes):
    nbytes = dict(named(numbers))
    for bucket in fuse(named(numbers), bucket_bytes=bucket_bytes):
        assert len(bucket) == 1 or sum(nbytes[name] for name in bucket) <= bucket_bytes


@given(counts, st.integers(1, 3 * 10**4))
def test_a_bucket_ends_only_where_the_next_tensor_does_not_fit(numbers, bucket_bytes):
    nbytes = dict(named(numbers))
    for bucket, following in pairwise(fuse(named(numbers), bucket_bytes=bucket_bytes)):
        filled_bytes = sum(nbytes[name] for name in bucket)
        assert filled_bytes + nbytes[following[0]] > bucket_bytes


@pytest.mark.parametrize("entries", [[("a", 1), ("a", 2)], [("a", -1)]])
def test_names_given_twice_and_negative_sizes_are_refused(entries):
    with pytest.raises(ValueError, match="'a'"):
        flat_layout(entries, align_elements=1)
    with pytest.raises(ValueError, match="'a'"):
        fuse(entries, bucket_bytes=1)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="align_elements must be at least 1, got 0"):
        flat_layout([], align_elements=0)
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, got 0"):
        fuse([], bucket_bytes=0)
