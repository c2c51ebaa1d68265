"""`coarse sweep`: predictions at many points, and from where on one mode is faster than another."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarse.cli.options import (
    MACHINE_HELP,
    OWN_MODEL_HELP,
    TRACE_HELP,
    Collective,
    HoldBack,
    Intervals,
    Jittered,
    PolicyOption,
    RingSlowDown,
    Samples,
    Seed,
    Step,
    require_jitter,
)
from coarse.cli.own_mode import OWN_MODE, SetOptions
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
from coarse.simulation.adaptation import PROFILE_EVERY

_MOST_TABLE_LINES = 40
_MOST_REASONS = 5
_MOST_PROCESSES = 1024
_MOST_CHARACTERS = 1 << 24
"""Of a list of points."""
_Parquet = Annotated[bool, typer.Option(help="Write rows.parquet too; needs pyarrow.")]
_Modes = Annotated[
    str | None,
    typer.Option(
        help=f"Of dense, allreduce, coarse (by default all three), zero2, fsdp, hybrid, zeropp, fcdp, {OWN_MODE}."
    ),
]

app = typer.Typer(add_completion=False)


_Points = Annotated[
    Path | None, typer.Option("--list", help="A CSV file: a line of keys, then a point in each line.")
]


class Shown(StrEnum):
    """What is drawn and compared."""

    ITERATION = "iteration_s"
    RATE = "samples_per_s"


@app.command()
def sweep(
    context: typer.Context,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=V,V,... or KEY=FROM:TO:logN or linN; several make a grid. KEY: an option, or a field of "
            "the machine's file such as wire.cci.latency_us."
        ),
    ] = None,
    points: _Points = None,
    machine: Annotated[str, typer.Option(help=MACHINE_HELP)] = "aws-p3",
    model: Annotated[str, typer.Option(help=f"resnet50, bert-large, {OWN_MODEL_HELP}, {TRACE_HELP}.")] = "resnet50",
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample of a model of your own.")] = None,
    step: Step = None,
    gpu: Annotated[str | None, typer.Option(help="Whose compute times; by default the machine's own.")] = None,
    peak_share: Annotated[float | None, typer.Option(help="Of the GPU's peak, as of coarse predict.")] = None,
    iteration_s: Annotated[float | None, typer.Option(help="Seconds as measured, as of coarse predict.")] = None,
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")] = 2,
    precision: Annotated[str, typer.Option(help="fp32 or fp16.")] = "fp32",
    workers: Annotated[int, typer.Option(help="Ranks that compute.")] = 4,
    devices: Annotated[int, typer.Option(help="Memory devices; 0: as many as workers.")] = 0,
    nodes: Annotated[int, typer.Option(help="Nodes that workers and devices are spread over.")] = 1,
    modes: _Modes = None,
    policy: PolicyOption = "auto",
    options: SetOptions = None,
    collective: Collective = None,
    hold_back: HoldBack = False,
    ring_slow_down: RingSlowDown = None,
    straggler: Annotated[list[str] | None, typer.Option(help="3=1.5: worker 3 computes 1.5 times longer.")] = None,
    jitter: Jittered = 0.0,
    seed: Seed = None,
    optimizer: Annotated[str, typer.Option(help="Whose states take memory: sgd, sgd-momentum or adam.")] = "adam",
    iterations: Annotated[int, typer.Option(help="Of which the last is shown.")] = 3,
    profile_every: Annotated[int, typer.Option(help="As of coarse predict.")] = PROFILE_EVERY,
    nvlink: Annotated[bool, typer.Option(help="Whether NVLinks, if the machine has any, are on.")] = True,
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
        asked = _asked(context, vary or [], points)
        console, cells = Console(), list(asked.cells())
        with Folder(out, asked.record(), (_key(cell) for cell in cells), restart=restart) as folder:
            _compute(folder, cells, processes or len(os.sched_getaffinity(0)))
            path, rows = folder.finish(), folder.in_order()
            wrote = [path, *([write_parquet(out, asked.keys, rows)] if parquet else [])]
            wrote += _show(asked, rows, show, out, console)
        for path in wrote:
            _say(console, f"wrote {path.as_posix()}")
        if all(row.reason for row in rows):
            raise ConfigError(f"no point can run: {rows[0].mode}: {rows[0].reason}")


def _asked(context: typer.Context, vary: Sequence[str], points: Path | None) -> Sweep:
    """The question of a command line; ConfigError where an option and a varied key are the same."""
    axes = [axis_of(text, WHOLE) for text in vary]
    base = {key: value for key, value in context.params.items() if key in SETTINGS and value is not None}
    for key in ("straggler", "options"):
        base[key] = "+".join(base.get(key, ())) or "none"
    listed = _listed(points)
    given = {
        key for key in SETTINGS
        if (source := context.get_parameter_source(key)) is not None and source.name == "COMMANDLINE"
    }  # fmt: skip
    if "batch" not in given and is_traced(str(base.get("model", "")), context.params["step"]):
        base["batch"] = 1  # what the traced step computed
    for key in (*(listed[0] if listed else ()), *(key for key, _ in axes)):
        if key in given:
            option = f"--{key.replace('_', '-')}"
            raise ConfigError(f"{key} is varied, and {option} states it too; leave {option} out", key=key)
    for key, values in axes:
        if key == "modes":
            base[key] = "+".join(map(text_of, values))
    varied = {*(listed[0] if listed else ()), *(key for key, _ in axes)}
    require_jitter(0 if {"seed"} & (given | varied) else None, has_jitter=bool({"jitter"} & (given | varied)))
    grid = points_of(listed, [axis for axis in axes if axis[0] != "modes"])
    if not (listed or axes):
        raise ConfigError("nothing is varied; write --vary KEY=VALUES, or --list FILE.csv", key="vary")
    samples = context.params["samples"]
    return Sweep(
        base={key: value for key, value in base.items() if key not in grid[0]},
        points=grid,
        intervals=tuple(context.params["interval"] or ()),
        num_samples=NUM_SAMPLES if samples is None else samples,
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
    """Compute what is missing; each row is kept as soon as it is known."""
    missing = folder.missing()
    open_cells = [cell for cell in cells if _key(cell) in missing]
    with shown_tasks() as tasks:
        tell = tasks.begin(f"{len(open_cells)} of {len(cells)} rows to compute")
        for number, row in enumerate(rows_of(open_cells, min(num_processes, len(open_cells))), start=1):
            folder.add(row)
            tell(number / len(open_cells))


def _show(asked: Sweep, rows: Sequence[Row], shown: Shown, out: Path, console: Console) -> Iterator[Path]:
    """The table, sentences and notes on the console; the picture in the folder."""
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
    """With samples as what is shown: a rate is another at the same work."""
    samples = row.samples_s
    if shown is Shown.RATE and row.iteration_s and row.samples_per_s:
        samples = tuple(row.samples_per_s * row.iteration_s / seconds for seconds in samples)
    return LineRow(values=row.values, mode=row.mode, y=getattr(row, shown.value), samples=samples)


def _draw(asked: Sweep, lines: Lines, out: Path) -> Path:
    from coarse.cli.report.sweep.picture import draw_lines  # matplotlib takes its time

    return draw_lines(lines, _title(asked), out / PICTURE_FILE)


def _title(asked: Sweep) -> str:
    """What all points share, as far as it is worth a line."""
    named: tuple[tuple[str, Callable[[Value], str]], ...] = (
        ("model", text_of), ("batch", lambda value: f"batch {text_of(value)}"),
        ("workers", lambda value: f"{text_of(value)} workers"), ("machine", text_of),
    )  # fmt: skip
    return ", ".join(write(asked.base[key]) for key, write in named if key in asked.base)


def _table(asked: Sweep, rows: Sequence[Row], shown: Shown) -> Table:
    """A line for each point and a column for each mode; of many points the first."""
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
    """How many rows have no number, and why."""
    counts = Counter((row.mode, row.reason) for row in rows if row.reason)
    for (mode, reason), count in counts.most_common(_MOST_REASONS):
        yield f"{count} of {len(rows)} rows are impossible: {mode}: {reason}."
    if len(counts) > _MOST_REASONS:
        yield f"Other reasons: {len(counts) - _MOST_REASONS}; {ROWS_FILE} has them."


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
