"""Sets of shards as integers: bit i stands for shard i."""


def mask_of(first: int, last: int) -> int:
    """The bit set of shards [first, last)."""
    return (1 << last) - (1 << first)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """The maximal runs [first, last) of set bits, in order."""
    runs = []
    first = 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        first += gap
        length = (~mask & (mask + 1)).bit_length() - 1
        runs.append((first, first + length))
        mask >>= length
        first += length
    return runs
