"""`coarse sweep`: predictions at many points, and the points at which one mode becomes the faster."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarse.cli.fields import Asked, with_options
from coarse.cli.options import MACHINE_HELP, OWN_MODEL_HELP, TRACE_HELP, Intervals, Samples, require_seed, stated_keys
from coarse.cli.own_mode import OWN_MODE
from coarse.cli.own_model.source import is_traced
from coarse.cli.progress import shown_tasks
from coarse.cli.report.ranges import NUM_SAMPLES
from coarse.cli.report.sweep.lines import LineRow, Lines, lines_of
from coarse.cli.report.sweep.points import Point, Value, axis_of, points_of, rows_of_csv, text_of
from coarse.cli.report.sweep.pool import rows_of
from coarse.cli.report.sweep.question import SETTINGS, WHOLE, Cell, Sweep
from coarse.cli.report.sweep.rows import (
    PICTURE_FILE,
    ROWS_FILE,
    Folder,
    Row,
    require_parquet,
    write_parquet,
)
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError
from coarse.simulation.question import Question

_MOST_TABLE_LINES = 40
_MOST_REASONS = 5
_MOST_PROCESSES = 1024
_MOST_CHARACTERS = 1 << 24
"""Largest number of characters in a list of points."""
_Parquet = Annotated[bool, typer.Option(help="Write rows.parquet too; needs pyarrow.")]
app = typer.Typer(add_completion=False)


_Points = Annotated[
    Path | None, typer.Option("--list", help="A CSV file: a line of keys, then a point in each line.")
]


class Shown(StrEnum):
    """Quantity that is drawn and compared."""

    ITERATION = "iteration_s"
    RATE = "samples_per_s"


@app.command()
@with_options(
    Question,
    without=("degrade",),
    optional=("seed",),
    helps={
        "machine": MACHINE_HELP,
        "model": f"resnet50, bert-large, {OWN_MODEL_HELP}, {TRACE_HELP}.",
        "modes": f"Of dense, allreduce, coarse (by default all three), zero2, fsdp, hybrid, zeropp, fcdp, {OWN_MODE}.",
    },
)
def sweep(
    context: typer.Context,
    asked: Asked,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=V,V,... or KEY=FROM:TO:logN or linN; several make a grid. KEY: an option, or a field of "
            "the machine's file such as wire.cci.latency_us."
        ),
    ] = None,
    points: _Points = None,
    show: Annotated[Shown, typer.Option(help="What is drawn and compared.")] = Shown.ITERATION,
    processes: Annotated[int, typer.Option(help="That compute side by side; 0: one a core.")] = 0,
    interval: Intervals = None,
    samples: Samples = None,
    parquet: _Parquet = False,
    restart: Annotated[bool, typer.Option(help="Remove what an earlier sweep left in the folder.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for rows and picture.")] = Path("results/sweep"),
) -> None:
    """Simulate a training job at many points: rows, a picture, and where one mode becomes faster than another."""
    with wrong_input_ends_with_2():
        if not 0 <= processes <= _MOST_PROCESSES:
            raise ConfigError(f"--processes must lie in 0..{_MOST_PROCESSES}, got {processes}", key="processes")
        if parquet:
            require_parquet()
        question = _asked(stated_keys(context), asked, vary or [], points, interval or (), samples)
        console, cells = Console(), list(question.cells())
        with Folder(out, question.record(), (_key(cell) for cell in cells), restart=restart) as folder:
            _compute(folder, cells, processes or len(os.sched_getaffinity(0)))
            path, rows = folder.finish(), folder.in_order()
            wrote = [path, *([write_parquet(out, question.keys, rows)] if parquet else [])]
            wrote += _show(question, rows, show, out, console)
        for path in wrote:
            _say(console, f"wrote {path.as_posix()}")
        if all(row.reason for row in rows):
            raise ConfigError(f"no point can run: {rows[0].mode}: {rows[0].reason}")


def _asked(
    stated: Collection[str],
    asked: Asked,
    vary: Sequence[str],
    points: Path | None,
    intervals: Sequence[str],
    num_samples: int | None,
) -> Sweep:
    """Return the question of a command line; raise ConfigError if an option is also a varied key."""
    axes = [axis_of(text, WHOLE) for text in vary]
    base = {key: asked[option.name] for key, option in SETTINGS.items() if option.name in asked}
    for key, option in SETTINGS.items():
        if option.kind is tuple:
            base[key] = "+".join(base.get(key, ())) or "none"
    listed = _listed(points)
    given = SETTINGS.keys() & stated
    if "batch" not in given and is_traced(asked["model"], asked.get("step")):
        base["batch"] = 1  # what the traced step computed
    for key in (*(listed[0] if listed else ()), *(key for key, _ in axes)):
        if key in given:
            flag = SETTINGS[key].flag
            raise ConfigError(f"{key} is varied, and {flag} states it too; leave {flag} out", key=key)
    for key, values in axes:
        if key == "modes":
            base[key] = "+".join(map(text_of, values))
    varied = {*(listed[0] if listed else ()), *(key for key, _ in axes)}
    require_seed(has_seed="seed" in given | varied, has_jitter="jitter" in given | varied)
    grid = points_of(listed, [axis for axis in axes if axis[0] != "modes"])
    if not (listed or axes):
        raise ConfigError("nothing is varied; write --vary KEY=VALUES, or --list FILE.csv", key="vary")
    return Sweep(
        base={key: value for key, value in base.items() if key not in grid[0]},
        points=grid,
        intervals=tuple(intervals),
        num_samples=NUM_SAMPLES if num_samples is None else num_samples,
    )


def _listed(path: Path | None) -> list[Point]:
    if path is None:
        return []
    with open(path, encoding="utf-8", newline="") as file:
        try:
            text = file.read(_MOST_CHARACTERS + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"--list {path}: not UTF-8 text ({error.reason}); save it so", key="list") from None
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"--list {path}: longer than {_MOST_CHARACTERS} characters; take fewer points", key="list")
    return rows_of_csv(text, str(path))


def _key(cell: Cell) -> tuple[str, ...]:
    return (*cell.values, cell.name)


def _compute(folder: Folder, cells: Sequence[Cell], num_processes: int) -> None:
    """Compute the missing rows; each is kept as soon as it is known."""
    missing = folder.missing()
    open_cells = [cell for cell in cells if _key(cell) in missing]
    with shown_tasks() as tasks:
        tell = tasks.begin(f"{len(open_cells)} of {len(cells)} rows to compute")
        for number, row in enumerate(rows_of(open_cells, min(num_processes, len(open_cells))), start=1):
            folder.add(row)
            tell(number / len(open_cells))


def _show(asked: Sweep, rows: Sequence[Row], shown: Shown, out: Path, console: Console) -> Iterator[Path]:
    """Print the table, sentences and notes; draw the picture into the folder and yield its path."""
    is_time = shown is Shown.ITERATION
    drawn = [_line_row(row, shown) for row in rows]
    lines = lines_of(asked.keys, drawn, low_is_fast=is_time)
    console.print(_table(asked, rows, shown))
    for text in (*_reasons(rows), *asked.notes()):
        _say(console, text)
    if lines is None:
        _say(console, "No picture and no crossing: no varied key has two numbers.")
        return
    for text in lines.sentences():
        _say(console, text)
    yield _draw(asked, lines, out)


def _line_row(row: Row, shown: Shown) -> LineRow:
    """Return a row for lines; samples of a rate are those at equal work."""
    samples = row.samples_s
    if shown is Shown.RATE and row.iteration_s and row.samples_per_s:
        samples = tuple(row.samples_per_s * row.iteration_s / seconds for seconds in samples)
    return LineRow(values=row.values, mode=row.mode, y=getattr(row, shown.value), samples=samples)


def _draw(asked: Sweep, lines: Lines, out: Path) -> Path:
    from coarse.cli.report.sweep.picture import draw_lines  # matplotlib takes its time

    return draw_lines(lines, _title(asked), out / PICTURE_FILE)


def _title(asked: Sweep) -> str:
    """Return the settings that all points share and that are worth a line."""
    named: tuple[tuple[str, Callable[[Value], str]], ...] = (
        ("model", text_of), ("batch", lambda value: f"batch {text_of(value)}"),
        ("workers", lambda value: f"{text_of(value)} workers"), ("machine", text_of),
    )  # fmt: skip
    return ", ".join(write(asked.base[key]) for key, write in named if key in asked.base)


def _table(asked: Sweep, rows: Sequence[Row], shown: Shown) -> Table:
    """Return a table with a line per point and a column per mode; of many points the first are shown."""
    is_time = shown is Shown.ITERATION
    unit = "ms" if is_time else "samples/s"
    table = Table(title=f"{_title(asked)} (simulated)", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    modes = list(dict.fromkeys(row.mode for row in rows))
    for key in asked.keys:
        table.add_column(key, justify="right")
    for mode in modes:
        table.add_column(f"{mode}\n{unit}", justify="right")
    points: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        number = row.iteration_s and row.iteration_s * 1e3 if is_time else row.samples_per_s
        points.setdefault(row.values, {})[row.mode] = "-" if number is None else f"{number:.4g}"
    for values, texts in list(points.items())[:_MOST_TABLE_LINES]:
        table.add_row(*values, *(texts.get(mode, "") for mode in modes))
    if len(points) > _MOST_TABLE_LINES:
        table.caption = f"the first {_MOST_TABLE_LINES} of {len(points)} points; {ROWS_FILE} has all"
    return table


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences on how many rows have no number, and why."""
    counts = Counter((row.mode, row.reason) for row in rows if row.reason)
    for (mode, reason), count in counts.most_common(_MOST_REASONS):
        yield f"{count} of {len(rows)} rows are impossible: {mode}: {reason}."
    if len(counts) > _MOST_REASONS:
        yield f"Other reasons: {len(counts) - _MOST_REASONS}; {ROWS_FILE} has them."


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
