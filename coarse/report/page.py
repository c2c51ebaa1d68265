"""One page about a run that needs nothing beside itself: tables, and the pictures inside it."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from coarse.report.run import Run

PAGE_FILE = "report.html"
MS_PER_S = 1e3
GB = 1e9
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.3em .7em;text-align:left}"
    "th{background:#f3f3f3}img{max-width:100%;height:auto}h1{font-size:1.5em}h2{font-size:1.15em}"
)


def columns(run: Run) -> tuple[str, ...]:
    """The heads of the table."""
    speed_up = f"speed-up over {run.results[0].name}"
    times = ("iteration ms", "compute ms", "exposed ms", "idle ms")
    return ("mode", "policy (to devices)", *times, speed_up, "GB on the busiest links", "kind")


def cells(run: Run, *, num_links: int) -> Iterator[tuple[str, ...]]:
    """The rows of the table, with so many links each."""
    for result, speed_up in zip(run.results, run.speed_ups(), strict=True):
        times = (result.iteration_s, result.compute_s, result.exposed_s, result.idle_s)
        in_ms = (_ms_text(seconds * MS_PER_S) for seconds in times)
        links = "; ".join(f"{name} {nbytes / GB:.3g}" for name, nbytes in result.link_bytes[:num_links]) or "-"
        yield (result.name, result.policy, *in_ms, f"{speed_up:.2f}", links, run.kind)


def _ms_text(milliseconds: float) -> str:
    """Four digits, and none beyond microseconds."""
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:#.4g}".rstrip(".")


def write_page(run: Run, pictures: Sequence[Path], folder: Path) -> Path:
    """The page, in the folder."""
    path = folder / PAGE_FILE
    path.write_text("\n".join(_lines(run, pictures)), encoding="utf-8")
    return path


def _lines(run: Run, pictures: Sequence[Path]) -> Iterator[str]:
    title = escape(run.title)
    yield f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>All numbers are <b>{escape(run.kind)}</b>.</p>"
    yield from _table(columns(run), cells(run, num_links=4))
    yield from (f"<p>{escape(note)}</p>" for note in run.notes)
    for picture in pictures:
        encoded = base64.b64encode(picture.read_bytes()).decode("ascii")
        yield f'<p><img alt="{escape(picture.stem)}" src="data:image/png;base64,{encoded}"></p>'
    yield "<h2>What was asked</h2>"
    yield from _table(("", ""), run.inputs.items())
    yield "<p>Traces (*.trace.json) beside this page open in Perfetto, ui.perfetto.dev.</p></body></html>"


def _table(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"
