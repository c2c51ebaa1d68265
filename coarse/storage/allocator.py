# Pure: no MPI, threads, clock or environment.
"""Which bytes of a device are taken."""

from bisect import bisect_left

PAGE_BYTES = 4096
_LINE_BYTES = 64
"""Of a processor's cache: what two workers write never lies in one line."""


class RegionAllocator:
    """First fit over the bytes [0, capacity) of one device; neighbouring holes become one again."""

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
        """Offset of a new region, a multiple of `align_bytes`; None where no hole is large enough.

        Without `align_bytes` a region of a page or more begins a page, and a smaller one a line of the cache: small
        regions lie close together, and leave a hole only where their size is no multiple of it. An empty region takes
        one byte, so that no two regions have the same offset.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0, got {nbytes}")
        if align_bytes is None:
            align_bytes = PAGE_BYTES if nbytes >= PAGE_BYTES else _LINE_BYTES
        if align_bytes < 1:
            raise ValueError(f"align_bytes must be at least 1, got {align_bytes}")
        wanted_bytes = max(nbytes, 1)
        for index, (begin, end) in enumerate(self._holes):
            offset = -(-begin // align_bytes) * align_bytes
            if offset + wanted_bytes <= end:
                rest = [(begin, offset), (offset + wanted_bytes, end)]
                self._holes[index : index + 1] = [hole for hole in rest if hole[0] < hole[1]]
                self._taken[offset] = offset + wanted_bytes
                return offset
        return None

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
