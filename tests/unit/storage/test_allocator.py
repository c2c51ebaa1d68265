"""Regions never overlap and no byte is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.storage.allocator import DeviceAllocator, RegionAllocator


def test_regions_are_aligned_and_the_first_hole_that_fits_is_taken():
    allocator = RegionAllocator(4 * 4096)
    assert [allocator.allocate(nbytes) for nbytes in (10, 4096, 1, 2 * 4096)] == [0, 2048, 64, 2048 + 4096]
    allocator.free(2048)
    assert allocator.allocate(4096) == 2048


@pytest.mark.parametrize("nbytes", [10, 4096, 10_000])
def test_a_region_of_all_bytes_fits(nbytes):
    assert RegionAllocator(nbytes).allocate(nbytes) == 0


def test_many_small_regions_leave_no_holes_between_them():
    allocator = RegionAllocator(1 << 20)
    assert [allocator.allocate(60) for _ in range(100)] == list(range(0, 6400, 64))
    assert allocator.allocate(4096) == 8192 - 2048 + 4096
    assert allocator.free_bytes == (1 << 20) - 6400 - 4096


def test_a_full_device_gives_none_and_tells_full_from_fragmented():
    allocator = RegionAllocator(30)
    offsets = [allocator.allocate(10, align_bytes=1) for _ in range(3)]
    assert allocator.allocate(1, align_bytes=1) is None
    allocator.free(offsets[0])
    allocator.free(offsets[2])
    assert allocator.allocate(20, align_bytes=1) is None
    assert (allocator.free_bytes, allocator.largest_free_bytes) == (20, 10)
    allocator.free(offsets[1])
    assert allocator.allocate(30, align_bytes=1) == 0


def test_a_region_is_carved_into_regions_from_its_beginning():
    allocator = RegionAllocator(1000)
    assert allocator.allocate(200, 1) == 0
    assert [allocator.carve(0, 100), allocator.size_of(0)] == [128, 128]
    assert [allocator.carve(128, 72), allocator.size_of(128)] == [-1, 72]
    with pytest.raises(ValueError, match="has 72 bytes, 73 were wanted"):
        allocator.carve(128, 73)
    allocator.free(0)
    allocator.free(128)
    assert allocator.largest_free_bytes == 1000


def test_two_empty_regions_have_different_offsets():
    allocator = RegionAllocator(8192)
    assert allocator.allocate(0) != allocator.allocate(0)


def test_a_region_is_freed_once():
    allocator = RegionAllocator(100)
    offset = allocator.allocate(10)
    allocator.free(offset)
    with pytest.raises(ValueError, match="no region starts at byte 0"):
        allocator.free(offset)


@pytest.mark.parametrize(("nbytes", "align_bytes"), [(-1, 1), (1, 0)])
def test_impossible_requests_are_refused(nbytes, align_bytes):
    with pytest.raises(ValueError, match="must be at least"):
        RegionAllocator(100).allocate(nbytes, align_bytes)


def test_a_device_of_negative_size_is_refused():
    with pytest.raises(ValueError, match="capacity_bytes"):
        RegionAllocator(-1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 40), st.sampled_from([1, 2, 8, 16])),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
    ),
    max_size=60,
)


@given(capacity_bytes=st.integers(0, 200), steps=STEPS)
def test_under_any_requests_no_byte_has_two_owners_and_none_is_lost(capacity_bytes, steps):
    allocator = RegionAllocator(capacity_bytes)
    owner: list[int | None] = [None] * capacity_bytes  # one byte each: the simpler truth
    regions: list[int] = []
    for action, number, align_bytes in steps:
        if action == "allocate":
            offset = allocator.allocate(number, align_bytes)
            size = max(number, 1)
            fits = [
                begin
                for begin in range(0, capacity_bytes - size + 1, align_bytes)
                if owner[begin : begin + size] == [None] * size
            ]
            assert offset == (fits[0] if fits else None)
            if offset is not None:
                owner[offset : offset + size] = [offset] * size
                regions.append(offset)
        elif regions:
            freed = regions.pop(number % len(regions))
            allocator.free(freed)
            owner = [None if of == freed else of for of in owner]
        assert allocator.free_bytes == owner.count(None)
        assert allocator.used_bytes == capacity_bytes - owner.count(None)
        assert allocator.capacity_bytes == capacity_bytes
    for offset in regions:
        allocator.free(offset)
    assert allocator.largest_free_bytes == allocator.free_bytes == capacity_bytes


# --- devices whose keys have a range of their own


def test_without_a_range_of_their_own_keys_share_the_one_there_is():
    device = DeviceAllocator(4096)
    assert device.allocate(64, is_of_key=True) == 0
    assert device.allocate(64, is_of_key=False) == 64
    assert device.free_bytes(is_of_key=True) == device.free_bytes(is_of_key=False) == 4096 - 128


def test_keys_with_a_range_of_their_own_take_nothing_of_the_other():
    device = DeviceAllocator(4096, (8192, 1024))
    offsets = [device.allocate(512, is_of_key=True) for _ in range(3)]
    assert offsets == [8192, 8192 + 512, None]
    assert device.allocate(512, is_of_key=False) == 0
    assert device.free_bytes(is_of_key=True) == 0
    assert device.free_bytes(is_of_key=False) == 4096 - 512
    assert device.used_bytes == 1024 + 512
    assert device.size_of(8192) == 512
    device.free(8192)
    device.free(0)
    assert device.used_bytes == 512


def test_an_arena_of_keys_is_carved_where_it_lies():
    device = DeviceAllocator(4096, (8192, 1024))
    assert device.allocate(256, is_of_key=True) == 8192
    assert device.carve(8192, 64) == 8192 + 64
    assert device.size_of(8192) == 64
    assert device.carve(8192 + 64, 192) == -1
