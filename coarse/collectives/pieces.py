# Pure: no MPI, threads, clock or environment.
"""Pieces in which a slice passes through a buffer of bounded size."""

from dataclasses import dataclass

_ALIGNED_ELEMENTS = 64


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Equal pieces of p slices of `slice_elements` each, of which the first `total_elements` exist.

    All members cut the same pieces. The last slices are short, or empty, where the total is no multiple of p.
    """

    slice_elements: int
    total_elements: int
    piece_elements: int

    @classmethod
    def within(cls, *, slice_elements: int, total_elements: int, room_elements: int, cells: int) -> "Pieces":
        """Return pieces as large as fit `cells` times into a buffer of `room_elements`."""
        room = max(1, room_elements // cells)
        aligned = room - room % _ALIGNED_ELEMENTS if room > _ALIGNED_ELEMENTS else room
        piece = max(1, min(aligned, slice_elements))
        return cls(slice_elements=slice_elements, total_elements=total_elements, piece_elements=piece)

    @property
    def num_slices(self) -> int:
        """Number of slices that have any elements."""
        return -(-self.total_elements // self.slice_elements) if self.slice_elements else 0

    @property
    def count(self) -> int:
        """Number of pieces of a whole slice."""
        return -(-self.slice_elements // self.piece_elements)

    def bounds(self, rank: int, piece: int) -> tuple[int, int]:
        """Return the first and past-the-last element of a piece of the slice of `rank`.

        Elements are counted over all slices; the piece may be empty.
        """
        start = rank * self.slice_elements
        end = min(start + self.slice_elements, self.total_elements)
        first = min(start + piece * self.piece_elements, end)
        return first, max(min(first + self.piece_elements, end), first)

    def length(self, rank: int, piece: int) -> int:
        """Return the number of elements of a piece of the slice of `rank`."""
        first, last = self.bounds(rank, piece)
        return last - first
