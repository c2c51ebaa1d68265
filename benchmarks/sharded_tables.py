"""What `wire.py` and `throughput.py` found, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rendering import markdown, milliseconds, percent, times
from benchmarks.sharded_ratios import median_step_s, times_faster

WIRE_COLUMNS = ("mode", "forward MB", "backward MB", "both MB", "formula MB", "without headers, over the formula")
_MB = 1e6


def wire_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row of wire.json."""
    lines = []
    for row in rows:
        both = row["forward_bytes"] + row["backward_bytes"]
        wanted = row["formula_forward_bytes"] + row["formula_backward_bytes"]
        counts = [row["forward_bytes"], row["backward_bytes"], both, wanted]
        lines.append([row["contender"], *(f"{count / _MB:.3f}" for count in counts), percent(row["excess"])])
    return lines


def throughput_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of throughput.json: milliseconds at each rate, and how much faster than fsdp on the ring."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["contender"] for row in rows):
        peer = f"fsdp-ring{'-lora' if name.endswith('-lora') else ''}"
        cells = [milliseconds(median_step_s(rows, name, rate)) for rate in rates]
        lines.append([name, *cells, *(times(times_faster(rows, name, peer, rate)) for rate in rates)])
    return ["mode", *(f"ms, {rate}" for rate in rates), *(f"of fsdp-ring, {rate}" for rate in rates)], lines


def sharded_part(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Both tables as Markdown, each with its command."""
    parts = []
    if "wire" in results:
        title = f"Bytes into a node per step, measured at its interface: `{results['wire']['command']}`"
        parts += [title, markdown(WIRE_COLUMNS, wire_lines(results["wire"]["rows"]))]
    if "throughput" in results:
        title = f"A training step, 2 nodes x 2 workers, measured: `{results['throughput']['command']}`"
        parts += [title, markdown(*throughput_table(results["throughput"]["rows"]))]
    return "\n\n".join(parts)
