"""Self-contained page about a run, with its tables and pictures."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from coarse.cli.report.run import Picture, Run

PAGE_FILE = "report.html"
MS_PER_S = 1e3
GB = 1e9
_STYLE = (
    ":root{color-scheme:light dark;--text:#222;--ground:#fff;--line:#ccc;--head:#f3f3f3;--quiet:#555;--link:#0b57a4}"
    "@media (prefers-color-scheme:dark){:root{--text:#e4e4e4;--ground:#161616;--line:#4a4a4a;--head:#262626;"
    "--quiet:#b4b4b4;--link:#8cc4ff}figure img{filter:invert(.914) hue-rotate(180deg)}}"
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;"
    "color:var(--text);background:var(--ground)}a{color:var(--link)}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:.5em 0 1em}td,th{border:1px solid var(--line);padding:.3em .7em;"
    "text-align:left;vertical-align:top}th{background:var(--head)}caption,figcaption{text-align:left;"
    "color:var(--quiet);padding:.3em 0}figure{margin:.5em 0 1.5em}img{max-width:100%;height:auto}"
    "h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid var(--line)}"
)
_WORDS = (
    ("iteration", "one step of training: compute, idle and exposed together; each is the mean over workers."),
    ("compute", "forward and backward."),
    ("idle", "waiting for slower workers' backward."),
    ("exposed", "what communication takes that no compute hides."),
    ("up, down", "the two directions of a wire: away from what it serves, and to it."),
    ("duplex", "what both directions of a wire share."),
    ("turn", "what transfers share that come up a wire and go down the same wire again."),
    ("crossing", "what transfers share that cross a socket from one of its wires to another."),
    ("load, store", "the rate at which a GPU reads or writes coherent memory."),
)  # fmt: skip


def columns(run: Run) -> tuple[str, ...]:
    """Return the heads of the table."""
    speed_up = f"speed-up over {run.results[0].name}"
    times = ("iteration ms", "compute ms", "exposed ms", "idle ms")
    return ("mode", "policy (to devices)", *times, speed_up, "links with most bytes, GB", "kind")


def cells(run: Run, *, num_links: int, between: str = " ") -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table, with `num_links` links each; ranges follow their numbers and `between`."""
    for result, speed_up in zip(run.results, run.speed_ups(), strict=True):
        times = (result.iteration_s, result.compute_s, result.exposed_s, result.idle_s)
        in_ms = [_ms_text(seconds * MS_PER_S) for seconds in times]
        if (range_s := run.range_s(result)) is not None:
            in_ms[0] += between + "-".join(_short(end * MS_PER_S) for end in range_s)
        faster = f"{speed_up:.2f}"
        if (ratios := run.speed_up_range(result)) is not None and result is not run.results[0]:
            faster += between + "-".join(f"{end:.2g}" if between == "\n" else f"{end:.2f}" for end in ratios)
        links = "; ".join(f"{name} {nbytes / GB:.3g}" for name, nbytes in result.link_bytes[:num_links]) or "-"
        yield (result.name, result.policy, *in_ms, faster, links, run.kind)


def _ms_text(milliseconds: float) -> str:
    """Return four digits, and none beyond microseconds."""
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:#.4g}".rstrip(".")


def _short(number: float) -> str:
    """Return three digits, and all before the decimal point."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def traces_in(folder: Path) -> tuple[Path, ...]:
    """Return the traces that lie beside a run."""
    return tuple(sorted((*folder.glob("*.trace.json"), *folder.glob("trace.json"))))


def write_page(run: Run, pictures: Sequence[Picture], folder: Path) -> Path:
    """Write the page into the folder; it links to the traces that exist by now."""
    path = folder / PAGE_FILE
    path.write_text("\n".join(_lines(run, pictures, traces_in(folder))), encoding="utf-8")
    return path


def _lines(run: Run, pictures: Sequence[Picture], traces: Sequence[Path]) -> Iterator[str]:
    title = escape(run.title)
    yield f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title} ({escape(run.kind)})</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>All numbers are <b>{escape(run.kind)}</b>.</p>"
    yield "<h2>Modes compared</h2>"
    yield from _table(f"An iteration of each mode ({run.kind}).", columns(run), cells(run, num_links=4))
    for picture in pictures:
        if picture.mode is None:
            yield from _figure(picture, f"{run.title}: modes compared")
    for mode in dict.fromkeys(picture.mode for picture in pictures if picture.mode is not None):
        yield f"<h2>Mode {escape(mode)}</h2>"
        for picture in pictures:
            if picture.mode == mode:
                yield from _figure(picture, f"{run.title}, mode {mode}: {picture.path.stem}")
        yield from (_trace_link(trace, f"Every span of mode {mode}") for trace in traces if _is_of(trace, mode))
    for trace in traces:
        if trace.name == "trace.json":
            yield f"<h2>Trace</h2>{_trace_link(trace, 'Every span of all modes')}"
    if run.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in run.notes) + "</ul>"
    yield "<h2>What was asked</h2>"
    yield from _table("What the numbers rest on.", ("input", "value"), run.inputs.items())
    yield "<h2>Words</h2>"
    yield from _table("Of the tables and pictures above.", ("word", "meaning"), _WORDS)
    yield "</body></html>"


def _is_of(trace: Path, mode: str) -> bool:
    return trace.name == f"{mode}.trace.json"


def _trace_link(trace: Path, what: str) -> str:
    """Return a link to a trace by its name, since it lies in the page's own folder."""
    return (
        f'<p>{escape(what)}, as a trace: <a href="{quote(trace.name)}" download>{escape(trace.name)}</a>. Open it in '
        '<a href="https://ui.perfetto.dev">Perfetto</a> (ui.perfetto.dev).</p>'
    )


def _figure(picture: Picture, description: str) -> Iterator[str]:
    encoded = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    yield f'<figure><img alt="{escape(description)}" src="data:image/png;base64,{encoded}">'
    yield f"<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _table(caption: str, heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead><tbody>"
    for first, *rest in rows:
        values = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        yield f'<tr><th scope="row">{escape(first)}</th>{values}</tr>'
    yield "</tbody></table></div>"
