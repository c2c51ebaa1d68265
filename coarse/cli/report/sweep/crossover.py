# Pure: no MPI, threads, clock or environment.
"""Crossovers of a sweep's lines: their places between points, and sentences on them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

Ys = Sequence[float | None]
"""Number for each x; None if there is none."""

LEAST_LOG_SPAN = 20.0
"""Ratio of the largest to the smallest of positive numbers from which they are drawn by their logarithms."""
_TIE = 1e-9
"""Relative difference below which numbers are equal."""
_HARDLY = 0.01


@dataclass(frozen=True)
class Crossing:
    """Crossing of two lines, which are straight between the points in the axes of the picture."""

    x: float
    y: float
    """Value of both lines."""
    between: tuple[float, float]
    """Neighbouring points; both are `x` if the lines meet in a point."""
    is_first_lower: bool
    """True if the first line is the lower one beyond the crossing."""


@dataclass(frozen=True)
class Axes:
    """Scales of the two axes: linear, or logarithmic."""

    log_x: bool = False
    log_y: bool = False


LINEAR = Axes()


def is_log(numbers: Sequence[float]) -> bool:
    """Return whether numbers are better seen by their logarithms."""
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LEAST_LOG_SPAN


def crossings(xs: Sequence[float], first: Ys, second: Ys, axes: Axes = LINEAR) -> tuple[Crossing, ...]:
    """Return the places at which the first line falls below the second or rises above it, in order of x.

    Points that one of the lines lacks are left out. Lines that are equal for a while and part as they were do not
    cross; where they change places by being equal at some points, the crossing is the last of those.

    Raises:
        ValueError: xs that do not grow, another number of ys than of xs, or logarithms of numbers that are not above 0.
    """
    if any(before >= after for before, after in pairwise(xs)) or not len(xs) == len(first) == len(second):
        raise ValueError(f"wanted xs that grow and as many ys, got {xs} with {len(first)} and {len(second)} ys")
    found: list[Crossing] = []
    before = 0
    last: tuple[float, float, float] | None = None
    for point in _common(xs, first, second):
        side = _side(point)
        if last is not None and side * before < 0:
            found.append(_crossing(last, point, is_first_lower=side < 0, axes=axes))
        before = side or before
        last = point
    return tuple(found)


def sentences(key: str, names: Sequence[str], xs: Sequence[float], lines: Sequence[Ys], *, axes: Axes,
              low_is_fast: bool) -> Iterator[str]:  # fmt: skip
    """Yield for each pair of lines a sentence on each crossing, or on why there is none."""
    for one, other in combinations(range(len(names)), 2):
        common = list(_common(xs, lines[one], lines[other]))
        pair = one_name, other_name = names[one], names[other]
        if len(common) < 2:
            yield f"{one_name} and {other_name} have fewer than two points in common, so no crossing is known"
            continue
        found = crossings(xs, lines[one], lines[other], axes)
        for crossing in found:
            faster, slower = pair if crossing.is_first_lower == low_is_fast else pair[::-1]
            low, high = crossing.between
            where = "in this point" if low == high else f"between the points {low:.6g} and {high:.6g}"
            yield f"from {key} = {crossing.x:.4g} on {faster} is faster than {slower} ({where})"
        if not found:
            yield _uncrossed(key, pair, common, low_is_fast=low_is_fast)


def moved(
    key: str,
    names: Sequence[str],
    xs: Sequence[float],
    lines: Sequence[Ys],
    samples: Sequence[Sequence[Ys]],
    axes: Axes,
) -> Iterator[str]:
    """Yield a sentence on the range of crossings under alternative inputs, for each pair of lines."""
    if not samples:
        return
    for one, other in combinations(range(len(names)), 2):
        found = [crossings(xs, each[one], each[other], axes) for each in (lines, *samples)]
        places = [crossing.x for each in found for crossing in each]
        if not places:
            yield f"{names[one]} and {names[other]} do not cross under any of {len(samples)} other inputs either"
            continue
        without = sum(not each for each in found)
        rest = f"; under {without} of {len(found)} there is none" if without else ""
        yield (
            f"{names[one]} and {names[other]} cross between {key} = {min(places):.4g} and {max(places):.4g} under "
            f"{len(found)} sets of inputs{rest}"
        )


def unmoved(key: str, names: Sequence[str], xs: Sequence[float], lines: Sequence[Ys]) -> Iterator[str]:
    """Yield a sentence on lines that hardly depend on x, if there are any."""
    texts = []
    for name, line in zip(names, lines, strict=True):
        known = [y for y in line if y is not None]
        if len(known) > 1 and max(known) - min(known) <= _HARDLY * min(known):
            share = (max(known) - min(known)) / min(known) if min(known) else 0.0
            texts.append(f"{name} by {share:.2%}" if share else f"{name} not at all")
    if texts:
        verdict = "hardly matters: it changes" if len(texts) == len(names) else "changes"
        yield f"{key} from {xs[0]:.6g} to {xs[-1]:.6g} {verdict} {', '.join(texts)}"


def _uncrossed(key: str, pair: tuple[str, str], common: Sequence[tuple[float, float, float]], *,
               low_is_fast: bool) -> str:  # fmt: skip
    where = f"in this range ({key} = {common[0][0]:.6g} to {common[-1][0]:.6g})"
    side = next((side for side in map(_side, common) if side), 0)
    if not side:
        return f"{pair[0]} and {pair[1]} are equally fast {where}"
    faster, slower = pair if (side < 0) == low_is_fast else pair[::-1]
    ratios = [max(first, second) / min(first, second) for _, first, second in common if min(first, second) > 0]
    low, high = (f"{ratio:.3g}" for ratio in (min(ratios, default=math.inf), max(ratios, default=math.inf)))
    times = low if low == high else f"{low} to {high}"
    return f"{slower} is never faster than {faster} {where}: {faster} is {times} times as fast"


def _common(xs: Sequence[float], first: Ys, second: Ys) -> Iterator[tuple[float, float, float]]:
    for x, one, other in zip(xs, first, second, strict=True):
        if one is not None and other is not None:
            yield x, one, other


def _side(point: tuple[float, float, float]) -> int:
    """Return -1 if the first is below the second, 1 if it is above, or 0 if they are equal."""
    _, first, second = point
    if math.isclose(first, second, rel_tol=_TIE, abs_tol=0.0):
        return 0
    return -1 if first < second else 1


def _crossing(
    left: tuple[float, float, float], right: tuple[float, float, float], *, is_first_lower: bool, axes: Axes
) -> Crossing:
    """Return the crossing between two points, or in the left one if the lines are equal there."""
    if not _side(left):
        return Crossing(left[0], left[1], (left[0], left[0]), is_first_lower)
    if (axes.log_x and left[0] <= 0) or (axes.log_y and min(*left[1:], *right[1:]) <= 0):
        raise ValueError(f"a logarithm needs numbers above 0, got {left} and {right}")
    to_x, from_x = (math.log, math.exp) if axes.log_x else (float, float)
    to_y, from_y = (math.log, math.exp) if axes.log_y else (float, float)
    before, after = to_y(left[1]) - to_y(left[2]), to_y(right[1]) - to_y(right[2])
    share = before / (before - after)
    x = from_x(to_x(left[0]) + share * (to_x(right[0]) - to_x(left[0])))
    y = from_y(to_y(left[1]) + share * (to_y(right[1]) - to_y(left[1])))
    return Crossing(min(max(x, left[0]), right[0]), y, (left[0], right[0]), is_first_lower)
