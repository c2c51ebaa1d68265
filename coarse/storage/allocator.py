# Pure: no MPI, threads, clock or environment.
"""Allocators of a device's bytes.

[Note: same place of a page] A processor takes a load for one that has to wait for a store just before it where both are
at about the same place of their pages. numpy and torch put large arrays a few bytes behind the beginning of a page, and
copies between them and regions that begin there are up to three times as slow, where memcpy writes past the cache.
"""

from bisect import bisect_left

from coarse.protocol.units import LINE_BYTES

PAGE_BYTES = 4096
_SKEW_BYTES = PAGE_BYTES // 2


def lines_of(nbytes: int) -> int:
    """Return the bytes of a small region: whole lines of the cache, and one at least.

    So no two workers write one line.
    """
    return -(-max(nbytes, 1) // LINE_BYTES) * LINE_BYTES


class RegionAllocator:
    """Allocator by first fit over the bytes [0, capacity) of one device.

    Neighbouring holes become one again.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"capacity_bytes must be at least 0, got {capacity_bytes}")
        self._capacity_bytes = capacity_bytes
        self._taken: dict[int, int] = {}  # offset -> end
        self._holes: list[tuple[int, int]] = [(0, capacity_bytes)] if capacity_bytes else []

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the device."""
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes in regions; the gaps that alignment leaves are free."""
        return self._capacity_bytes - self.free_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes in no region."""
        return sum(end - begin for begin, end in self._holes)

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest hole: with `free_bytes`, it tells full from fragmented."""
        return max((end - begin for begin, end in self._holes), default=0)

    def allocate(self, nbytes: int, align_bytes: int | None = None) -> int | None:
        """Return the offset of a new region, a multiple of `align_bytes`; None where no hole is large enough.

        Without `align_bytes` a region of a page or more begins in the middle of a page ([Note: same place of a page]),
        and a smaller one takes whole lines of the cache: small regions lie close together and leave no holes. Where
        there is no such room, any bytes will do. An empty region takes one byte at least, so that no two regions have
        the same offset.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0, got {nbytes}")
        wanted_bytes = max(nbytes, 1)
        if align_bytes is not None:
            if align_bytes < 1:
                raise ValueError(f"align_bytes must be at least 1, got {align_bytes}")
            return self._first_fit(wanted_bytes, align_bytes, 0)
        if nbytes >= PAGE_BYTES:
            offset = self._first_fit(wanted_bytes, PAGE_BYTES, _SKEW_BYTES)
        else:
            offset = self._first_fit(lines_of(nbytes), LINE_BYTES, 0)
        return self._first_fit(wanted_bytes, LINE_BYTES, 0) if offset is None else offset

    def _first_fit(self, nbytes: int, align_bytes: int, skew_bytes: int) -> int | None:
        """Take bytes whose offset is a multiple of `align_bytes`, and `skew_bytes` more."""
        for index, (begin, end) in enumerate(self._holes):
            offset = -(-(begin - skew_bytes) // align_bytes) * align_bytes + skew_bytes
            if offset + nbytes <= end:
                rest = [(begin, offset), (offset + nbytes, end)]
                self._holes[index : index + 1] = [hole for hole in rest if hole[0] < hole[1]]
                self._taken[offset] = offset + nbytes
                return offset
        return None

    def carve(self, offset: int, nbytes: int) -> int:
        """Make the first bytes of the region at `offset`, so many or more, a separate region.

        It returns the offset of the rest, which is a region too, or -1 where there is none.
        """
        end = self._taken[offset]
        if offset + nbytes > end:
            raise ValueError(f"the region at byte {offset} has {end - offset} bytes, {nbytes} were wanted of it")
        rest = min(offset + lines_of(nbytes), end)
        if rest == end:
            return -1
        self._taken[offset], self._taken[rest] = rest, end
        return rest

    def size_of(self, offset: int) -> int:
        """Return the bytes of the region at `offset`."""
        return self._taken[offset] - offset

    def free(self, offset: int) -> None:
        """Give the region at `offset` back."""
        end = self._taken.pop(offset, None)
        if end is None:
            raise ValueError(
                f"no region starts at byte {offset} of this device ({len(self._taken)} regions "
                "do at others); each offset that allocate() gave may be freed once"
            )
        begin = offset
        index = bisect_left(self._holes, (begin, end))
        if index < len(self._holes) and self._holes[index][0] == end:
            end = self._holes.pop(index)[1]
        if index > 0 and self._holes[index - 1][1] == begin:
            index -= 1
            begin = self._holes.pop(index)[0]
        self._holes.insert(index, (begin, end))


class DeviceAllocator:
    """Allocator of a device's regions.

    Those of keys have a separate range where its memory is in part a GPU's.
    """

    def __init__(self, capacity_bytes: int, keys: tuple[int, int] | None = None) -> None:
        """Start without regions.

        `keys` is the offset of the range of keys, at `capacity_bytes` or above, and its bytes.
        """
        self._others = RegionAllocator(capacity_bytes)
        begin, nbytes = keys or (0, 0)
        self._keys = self._others if keys is None else RegionAllocator(nbytes)
        self._keys_begin = begin

    def allocate(self, nbytes: int, *, is_of_key: bool) -> int | None:
        """Return the offset of a new region; None where there is no room.

        RegionAllocator has the details.
        """
        if not is_of_key:
            return self._others.allocate(nbytes)
        offset = self._keys.allocate(nbytes)
        return None if offset is None else offset + self._keys_begin

    def free_bytes(self, *, is_of_key: bool) -> int:
        """Return the bytes in no region, from which such a region could be given."""
        return (self._keys if is_of_key else self._others).free_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes in regions."""
        apart = 0 if self._keys is self._others else self._keys.used_bytes
        return self._others.used_bytes + apart

    def carve(self, offset: int, nbytes: int) -> int:
        """Carve a region of keys alone, as RegionAllocator does."""
        rest = self._keys.carve(offset - self._keys_begin, nbytes)
        return rest if rest < 0 else rest + self._keys_begin

    def size_of(self, offset: int) -> int:
        """Return the bytes of the region at `offset`."""
        allocator, begin = self._at(offset)
        return allocator.size_of(offset - begin)

    def free(self, offset: int) -> None:
        """Give the region at `offset` back."""
        allocator, begin = self._at(offset)
        allocator.free(offset - begin)

    def _at(self, offset: int) -> tuple[RegionAllocator, int]:
        """Return the allocator of an offset, and the beginning of its range."""
        is_of_key = self._keys is not self._others and offset >= self._keys_begin
        return (self._keys, self._keys_begin) if is_of_key else (self._others, 0)
