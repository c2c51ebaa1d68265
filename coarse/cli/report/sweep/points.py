# Pure: no MPI, threads, clock or environment.
"""Points of a sweep, from texts like `wire.cci.latency_us=0.1:1000:log9` and `workers=2,4`, and from CSV."""

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product

from coarse.errors import ConfigError

Value = bool | int | float | str
Point = Mapping[str, Value]
"""Value for each key, in the order of the keys."""

MAX_POINTS = 100_000
_DIGITS = 6
"""Significant digits of the points within a range."""
_TRUTHS = {"true": True, "on": True, "false": False, "off": False}
_FORM = "KEY=VALUE,VALUE,... or KEY=FROM:TO:logN or KEY=FROM:TO:linN, such as wire.cci.latency_us=0.1:1000:log9"


def axis_of(text: str, whole: Collection[str]) -> tuple[str, tuple[Value, ...]]:
    """Return (key, its values, each once) of `KEY=VALUES`.

    A range of one of the `whole` keys has whole numbers only.

    Raises:
        ConfigError: a text of another form, or a range without an end.
    """
    key, equals, stated = (part.strip() for part in text.partition("="))
    if not (key and equals and stated):
        raise ConfigError(f"--vary must be {_FORM}, got {text!r}; correct it", key="vary")
    values: dict[str, Value] = {}
    for part in stated.split(","):
        for value in _values(key, part.strip(), key in whole):
            values.setdefault(text_of(value), value)
    return key, tuple(values.values())


def value_of(key: str, text: str) -> Value:
    """Return the number, truth or text that a text states; one without a fraction is a whole number."""
    if not text:
        raise ConfigError(f"a value of {key} is empty; write it, or leave it out", key=key)
    if not text.isprintable():
        raise ConfigError(f"a value of {key} must be of printed letters, got {text!r}; correct it", key=key)
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if re.fullmatch(r"[+-]?\d{1,24}", text):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise ConfigError(f"{key} must be finite, got {text}; write a number", key=key)
    return _plain(number)


def text_of(value: Value) -> str:
    """Return the text from which `value_of` makes the value again."""
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def rows_of_csv(text: str, where: str) -> list[Point]:
    """Return a point for each line below the line of keys; `where` is named in errors.

    Raises:
        ConfigError: no points, a key twice or empty, or a line with another number of cells than keys.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    keys = [cell.strip() for cell in next(lines, [])]
    if not all(keys) or not keys or len(set(keys)) < len(keys):
        raise ConfigError(f"{where}:1: wanted keys, each once and none empty, got {keys}; correct the line", key="list")
    points: list[Point] = []
    for cells in lines:
        if not cells:
            continue
        if len(cells) != len(keys):
            raise ConfigError(
                f"{where}:{lines.line_num}: wanted {len(keys)} cells, for {', '.join(keys)}, got {len(cells)}; "
                "correct the line",
                key="list",
            )
        try:
            points.append({key: value_of(key, cell.strip()) for key, cell in zip(keys, cells, strict=True)})
        except ConfigError as error:
            raise ConfigError(f"{where}:{lines.line_num}: {error}", key=error.key) from None
    if not points:
        raise ConfigError(f"{where}: no point below the line of keys; add one", key="list")
    return points


def points_of(rows: Sequence[Point], axes: Sequence[tuple[str, Sequence[Value]]]) -> tuple[Point, ...]:
    """Return every row with every combination of the axes' values, each once; the last axis changes fastest.

    Raises:
        ConfigError: a key that stands twice, or more than MAX_POINTS points.
    """
    keys = [*(rows[0] if rows else ()), *(key for key, _ in axes)]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key} is varied twice; write all its values in one place", key=key)
    num_points = max(1, len(rows)) * math.prod(len(values) for _, values in axes)
    if num_points > MAX_POINTS:
        raise ConfigError(f"a sweep has at most {MAX_POINTS} points, got {num_points}; take fewer values", key="vary")
    points: dict[tuple[str, ...], Point] = {}
    for row, values in product(rows or [{}], product(*(values for _, values in axes))):
        point = {**row, **dict(zip((key for key, _ in axes), values, strict=True))}
        points.setdefault(tuple(map(text_of, point.values())), point)
    return tuple(points.values())


def _values(key: str, text: str, is_whole: bool) -> Iterator[Value]:
    if not re.match(r"[^:]*:[^:]*:|[+-]?[\d.]+[eE\d+-]*:", text):
        yield value_of(key, text)
        return
    found = re.fullmatch(r"([^:]+):([^:]+):(lin|log)(\d{1,6})", text)
    begin, end = (value_of(key, found[number].strip()) for number in (1, 2)) if found else ("", "")
    numbers = [float(one) for one in (begin, end) if isinstance(one, int | float) and not isinstance(one, bool)]
    if found is None or len(numbers) < 2 or not 2 <= int(found[4]) <= MAX_POINTS:
        raise ConfigError(
            f"a range of {key} must be FROM:TO:logN or FROM:TO:linN with N points, at least 2 and at most "
            f"{MAX_POINTS}, got {text!r}; correct it",
            key=key,
        )
    if found[3] == "log" and min(numbers) <= 0:
        raise ConfigError(f"a range of {key} by log must lie above 0, got {text!r}; write lin", key=key)
    for number in _between(numbers[0], numbers[1], found[3] == "log", int(found[4])):
        yield round(number) if is_whole else _plain(number)


def _between(begin: float, end: float, is_log: bool, num_points: int) -> Iterator[float]:
    """Yield both ends unchanged, and rounded points between them."""
    yield begin
    for number in range(1, num_points - 1):
        share = number / (num_points - 1)
        inner = begin * (end / begin) ** share if is_log else begin + (end - begin) * share
        yield float(f"{inner:.{_DIGITS}g}")
    yield end


def _plain(number: float) -> int | float:
    """Return a number without a fraction as a whole one, so that 1, 1.0 and 1e0 are one point."""
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
