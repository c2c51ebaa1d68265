# Pure: no MPI, threads, clock or environment.
"""Lines of a sweep's picture: a panel per combination of the other keys, a line per mode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coarse.cli.report.sweep.crossover import Axes, Crossing, Ys, crossings, is_log, moved, sentences, unmoved
from coarse.cli.report.sweep.points import value_of


@dataclass(frozen=True, kw_only=True)
class LineRow:
    """Data of a row that lines need."""

    values: tuple[str, ...]
    mode: str
    y: float | None
    """Seconds of an iteration, or samples per second; None if the point is impossible."""
    samples: tuple[float, ...] = ()
    """Values of `y` under alternative inputs."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over common numbers."""

    title: str
    """Other keys and their values; empty if there are none."""
    xs: tuple[float, ...]
    names: tuple[str, ...]
    """Names of the modes."""
    lines: tuple[Ys, ...]
    samples: tuple[tuple[Ys, ...], ...] = ()
    """Values of `lines` under alternative inputs, once for each of these."""

    def band(self, number: int) -> tuple[tuple[float, float] | None, ...] | None:
        """Return the least and most of a line at each x; None without alternative inputs."""
        if not self.samples:
            return None
        columns = zip(self.lines[number], *(lines[number] for lines in self.samples), strict=True)
        known = ([y for y in column if y is not None] for column in columns)
        return tuple((min(ys), max(ys)) if ys else None for ys in known)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Panels, with the axes that they share."""

    x_key: str
    axes: Axes
    panels: tuple[Panel, ...]
    low_is_fast: bool

    def crossings(self, panel: Panel) -> Iterator[Crossing]:
        """Yield the crossings of every pair of the panel's lines."""
        for number, line in enumerate(panel.lines):
            for other in panel.lines[number + 1 :]:
                yield from crossings(panel.xs, line, other, self.axes)

    def sentences(self) -> Iterator[str]:
        """Yield sentences on where lines cross or why not, and on lines that hardly change."""
        for panel in self.panels:
            lead = f"{panel.title}: " if panel.title else ""
            key, names = self.x_key, panel.names
            for text in sentences(key, names, panel.xs, panel.lines, axes=self.axes, low_is_fast=self.low_is_fast):
                yield lead + text
            for text in moved(key, names, panel.xs, panel.lines, panel.samples, self.axes):
                yield lead + text
            for text in unmoved(key, names, panel.xs, panel.lines):
                yield lead + text


def lines_of(keys: Sequence[str], rows: Sequence[LineRow], *, low_is_fast: bool) -> Lines | None:
    """Return the lines over the first key with two or more values, all numbers; None without such a key."""
    x_number = next((number for number in range(len(keys)) if _are_numbers(row.values[number] for row in rows)), None)
    if x_number is None:
        return None
    apart = [number for number, key in enumerate(keys) if number != x_number and key != "modes"]
    apart = [number for number in apart if len({row.values[number] for row in rows}) > 1]
    groups: dict[tuple[str, ...], list[LineRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.values[number] for number in apart), []).append(row)
    xs = [float(row.values[x_number]) for row in rows]
    ys = [row.y for row in rows if row.y is not None]
    return Lines(
        x_key=keys[x_number],
        axes=Axes(log_x=is_log(xs), log_y=is_log(ys)),
        panels=tuple(
            _panel(", ".join(f"{keys[n]} = {text}" for n, text in zip(apart, texts, strict=True)), group, x_number)
            for texts, group in groups.items()
        ),
        low_is_fast=low_is_fast,
    )


def _panel(title: str, rows: Sequence[LineRow], x_number: int) -> Panel:
    xs = sorted({float(row.values[x_number]) for row in rows})
    found = {(row.mode, float(row.values[x_number])): row.y for row in rows}
    names = tuple(dict.fromkeys(row.mode for row in rows))
    lines = tuple(tuple(found.get((name, x)) for x in xs) for name in names)
    under = {(row.mode, float(row.values[x_number])): row.samples for row in rows}
    num_samples = max((len(samples) for samples in under.values()), default=0)
    samples = tuple(
        tuple(tuple(_at(under.get((name, x), ()), number) for x in xs) for name in names)
        for number in range(num_samples)
    )
    return Panel(title=title, xs=tuple(xs), names=names, lines=lines, samples=samples)


def _at(samples: Sequence[float], number: int) -> float | None:
    return samples[number] if number < len(samples) else None


def _are_numbers(texts: Iterator[str]) -> bool:
    """Return whether all texts are numbers, and at least two differ."""
    different = set(texts)
    values = [value_of("", text) for text in different]
    return len(different) > 1 and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
