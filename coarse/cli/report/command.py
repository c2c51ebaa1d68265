"""`coarse report`: pictures and one page of a run in a folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from coarse.cli.report.chakra import write_chakra
from coarse.cli.report.page import cells, traces_in, write_page
from coarse.cli.report.run import Run, read_run
from coarse.cli.wrong_input import wrong_input_ends_with_2

HEADS = (
    *("mode", "policy", "total\nms", "compute\nms", "exposed\nms", "idle\nms", "speed-\nup"),
    *("most GB\non a link", "kind"),
)

_WIDEST = 1000
"""Columns of text, more than any table needs."""

app = typer.Typer(add_completion=False)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What `coarse predict --out` or experiments/demo.py wrote.")],
    chakra: Annotated[
        bool, typer.Option("--chakra", help="Write each worker's iteration as a Chakra trace too: MODE.RANK.et.")
    ] = False,
) -> None:
    """Draw a run: timelines, links over time and comparison bars as PNG, and one self-contained HTML page."""
    with wrong_input_ends_with_2():
        run, console = read_run(folder), Console()
        wrote = list(write_chakra(run, folder)) if chakra else []
        show(run, folder, console)
        for path in wrote:
            console.print(f"wrote {path.as_posix()}", highlight=False, markup=False, soft_wrap=True)


def show(run: Run, folder: Path, console: Console) -> None:
    """Print the table; write the pictures and the page into the folder."""
    from coarse.cli.report.figures import draw_run  # matplotlib takes its time

    pictures = draw_run(run, folder)
    page = write_page(run, pictures, folder)
    _print_whole(console, table_of(run))
    for note in run.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    wrote = [*(picture.path for picture in pictures), page]
    for what, paths in (("wrote", wrote), ("trace", traces_in(folder))):
        for path in paths:
            console.print(f"{what} {path.as_posix()}", highlight=False, markup=False, soft_wrap=True)


def _print_whole(console: Console, table: Table) -> None:
    """Print a table, wider than the console if that would cut its columns."""
    least = Measurement.get(console, console.options.update(max_width=_WIDEST), table).minimum
    if least > console.width:
        table.width = least
    console.print(table, crop=False)


def table_of(run: Run) -> Table:
    """Return a table with a row per mode; speed-ups are over the first, shares are of bytes to devices."""
    caption = f"speed-up over {run.results[0].name}; n% of the bytes go to memory devices"
    table = Table(title=run.title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.caption, table.caption_justify = caption, "left"
    for number, head in enumerate(HEADS):
        is_text = number in (0, 1, 7, 8)
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(head, justify=justify, no_wrap=number != 7, min_width=9 if number >= 7 else None)
    for row in cells(run, num_links=1, between="\n"):
        table.add_row(*row)
    return table
