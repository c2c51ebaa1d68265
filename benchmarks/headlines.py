"""Six figures of the README and docs/results.md, misses too: each a target of `targets.py` with kind and command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.emulated_targets import BESIDE_SIMULATION
from benchmarks.rendering import markdown
from benchmarks.targets import JUDGES, Result
from benchmarks.verdicts import Verdict


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One figure of the README: a target of a result, and how a reader would say it."""

    figure: str
    result: str
    target: str
    command: str


HEADLINES = (
    Headline(
        figure="Sum of gradients in device memory, 2 workers and 2 devices: times faster than Gloo",
        result="sync-2-2",
        target="in device memory: faster than Gloo",
        command="make bench-sync",
    ),
    Headline(
        figure="The same sum: its time over that of one memcpy of the bytes",
        result="sync-2-2",
        target="in device memory: time in memcpys",
        command="make bench-sync",
    ),
    Headline(
        figure="Time that coarse adds to a training step of the demo's GPT",
        result="step-2-2",
        target="added to a training step",
        command="make bench-step",
    ),
    Headline(
        figure="Sharded training by fcdp between nodes at 100 Mbit/s: times faster than ZeRO-3",
        result="throughput",
        target="fcdp: faster than fsdp, same collective",
        command="make bench-throughput",
    ),
    Headline(
        figure="Steps of trainings emulated on machines that are not here, beside their simulation: mean difference",
        result="emulated-training",
        target=BESIDE_SIMULATION,
        command="make bench-emulated-training",
    ),
)
_CLAIMS_FIGURE = "Numbers and orders that the COARSE paper states, beside ours"


def headlines_of(results: Mapping[str, Result], claims_page: str) -> str:
    """Return the table of docs/results.md: five targets of benchmarks, and the claims of validation.md."""
    return markdown(["figure", "target", "found", "reached", "kind", "command"], _rows(results, claims_page))


def figures_of(results: Mapping[str, Result], claims_page: str) -> str:
    """Return the six figures of the README without their targets, and below them a line that names the misses."""
    rows = _rows(results, claims_page)
    table = markdown(["figure", "found", "kind", "command"], [[row[0], row[2], row[4], row[5]] for row in rows])
    missed = [f"{figure} (target {target}; {reached.removeprefix('no ')[1:-1]})"
              for figure, target, _, reached, *_ in rows if reached.startswith("no ")]  # fmt: skip
    return f"{table}\n\nMissed: {'; '.join(missed) or 'none'}."


def _rows(results: Mapping[str, Result], claims_page: str) -> list[list[str]]:
    lines = [_line_of(headline, results.get(headline.result)) for headline in HEADLINES]
    return [*lines, _claims_line(counts_of(claims_page))]


def counts_of(claims_page: str) -> str:
    """What the page says of its rows, like `93 rows: 16 within 10 %, 49 missed`."""
    counts, *_ = [line.partition(". ")[0] for line in claims_page.splitlines() if " rows: " in line]
    return counts


def _line_of(headline: Headline, result: Result | None) -> list[str]:
    verdict = _verdict_on(headline, result)
    found = "; ".join(f"{place} {value}" for place, value in verdict.found) or "-"
    kind = result["kind"] if result else "-"
    return [headline.figure, verdict.limit, found, verdict.reached, kind, f"`{headline.command}`"]


def _verdict_on(headline: Headline, result: Result | None) -> Verdict:
    (verdict,) = [verdict for verdict in JUDGES[headline.result](result) if verdict.target == headline.target]
    return verdict


def _claims_line(counts: str) -> list[str]:
    missed = re.search(r"\d+ missed", counts)
    reached = f"no ({missed[0]})" if missed else "yes"
    return [_CLAIMS_FIGURE, "the paper's", counts, reached, "simulated", "`make validate`"]
