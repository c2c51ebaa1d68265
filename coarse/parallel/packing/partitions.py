# Pure: no MPI, threads, clock or environment.
"""Numbers divided into parts of nearly equal sums.

Two heuristics, of which the better one counts: the largest differencing method (Karmarkar and Karp 1982), and the
largest number to the smallest sum (Graham 1969), whose largest sum is at most 4/3 - 1/(3k) of the best one; then moves
and swaps between the largest part and the smallest, as long as they help.
"""

import heapq
from collections.abc import Sequence

from coarse.errors import ConfigError

Parts = list[list[int]]
"""Indices of the numbers of each part."""
_MOST_SWAPS = 200


def balanced_parts(values: Sequence[float], num_parts: int, *, is_equal: bool = False) -> Parts:
    """Divide numbers into so many parts, as sorted indices; parts may be empty if there are fewer numbers.

    Args:
        values: at least 0 each; a list, an array or a tensor.
        num_parts: number of parts.
        is_equal: whether all parts have equally many.

    Raises:
        ConfigError: no parts; numbers that cannot be divided into equally many.
    """
    if num_parts < 1:
        raise ConfigError(f"wanted at least one part, got {num_parts}", key="num_parts")
    if is_equal and len(values) % num_parts:
        raise ConfigError(
            f"{len(values)} samples cannot be divided into {num_parts} parts of equally many; leave out or add some",
            key="equal_size",
        )
    values = [value.item() if hasattr(value, "item") else value for value in values]  # of arrays and tensors, too
    found = [_differenced(values, num_parts, is_equal), _greedy(values, num_parts, is_equal)]
    for parts in found:
        _swap(values, parts, is_equal)
    best = min(found, key=lambda parts: largest_sum(values, parts))
    return [sorted(part) for part in best]


def largest_sum(values: Sequence[float], parts: Parts) -> float:
    """Return the largest sum of all parts."""
    return max(sum(values[index] for index in part) for part in parts)


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> Parts:
    """Divide items like verl's function of this name, with its arguments and results.

    The function is in verl/utils/seqlen_balancing.py.

    Args:
        seqlen_list: a length, or a workload, of each item.
        k_partitions: how many parts, each of which gets an item.
        equal_size: whether each part has equally many.

    Returns:
        `k_partitions` lists of indices, sorted, which together have each index once.

    Raises:
        ConfigError: fewer items than parts, or no multiple of them if parts are to be equally large.
    """
    if len(seqlen_list) < k_partitions:
        raise ConfigError(
            f"{len(seqlen_list)} items cannot give each of {k_partitions} partitions one; use fewer partitions",
            key="k_partitions",
        )
    parts = balanced_parts(seqlen_list, k_partitions, is_equal=equal_size)
    while empty := [part for part in parts if not part]:  # of items without a length there may be too many in one
        fullest = max(parts, key=len)
        empty[0].append(fullest.pop())
    return [sorted(part) for part in parts]


class _Division:
    """Division of some numbers into parts, the largest first."""

    def __init__(self, parts: list[tuple[float, list[int]]]) -> None:
        self.parts = sorted(parts, key=lambda part: (-part[0], part[1]))

    @property
    def spread(self) -> float:
        return self.parts[0][0] - self.parts[-1][0]

    def merged(self, other: "_Division") -> "_Division":
        """Return the division that joins its largest with the other's smallest, and so on."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        return _Division([(one + another, own + others) for (one, own), (another, others) in pairs])


def _differenced(values: Sequence[float], num_parts: int, is_equal: bool) -> Parts:
    """Divide by Karmarkar and Karp: join the two divisions that differ most, until one is left."""
    order = sorted(range(len(values)), key=lambda index: (values[index], index))
    empty: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(num_parts)]
    width = num_parts if is_equal else 1
    waiting: list[tuple[float, int, _Division]] = []
    for number, begin in enumerate(range(0, len(order), width)):
        group: list[tuple[float, list[int]]] = [(values[index], [index]) for index in order[begin : begin + width]]
        division = _Division(group + empty[width:])
        waiting.append((-division.spread, number, division))
    heapq.heapify(waiting)
    number = len(waiting)
    while len(waiting) > 1:
        _, _, one = heapq.heappop(waiting)
        _, _, other = heapq.heappop(waiting)
        both = one.merged(other)
        heapq.heappush(waiting, (-both.spread, number, both))
        number += 1
    return [part for _, part in waiting[0][2].parts] if waiting else [[] for _ in range(num_parts)]


def _greedy(values: Sequence[float], num_parts: int, is_equal: bool) -> Parts:
    """Divide by Graham: the largest number goes where the sum is smallest, among parts that are not full."""
    most = len(values) // num_parts if is_equal else len(values)
    parts: Parts = [[] for _ in range(num_parts)]
    sums = [(0.0, number) for number in range(num_parts)]
    for index in sorted(range(len(values)), key=lambda index: (-values[index], index)):
        total, number = heapq.heappop(sums)
        parts[number].append(index)
        if len(parts[number]) < most:
            heapq.heappush(sums, (total + values[index], number))
    return parts


def _swap(values: Sequence[float], parts: Parts, is_equal: bool) -> None:
    """Move a number from the largest part to the smallest, or swap two, while the larger sum falls."""
    sums = [sum(values[index] for index in part) for part in parts]
    for _ in range(_MOST_SWAPS):
        high = max(range(len(parts)), key=lambda number: sums[number])
        low = min(range(len(parts)), key=lambda number: sums[number])
        gap = sums[high] - sums[low]
        pairs = [(values[own] - values[other], own, other) for own in parts[high] for other in parts[low]]
        if not is_equal:
            pairs += [(values[own], own, -1) for own in parts[high]]
        useful = [pair for pair in pairs if 0.0 < pair[0] < gap]
        if not useful:
            return
        moved, own, other = min(useful, key=lambda pair: (abs(pair[0] - gap / 2), pair[1:]))
        new_high, new_low = sums[high] - moved, sums[low] + moved
        if max(new_high, new_low) >= sums[high]:
            return  # as floats are
        sums[high], sums[low] = new_high, new_low
        parts[high].remove(own)
        parts[low].append(own)
        if other >= 0:
            parts[low].remove(other)
            parts[high].append(other)
