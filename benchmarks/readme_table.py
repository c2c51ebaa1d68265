"""Write the numbers of benchmarks/results into the README and docs, with the targets that they reach and miss.

The README and docs/results.md have six figures, docs/benchmarks.md all tables.

python benchmarks/readme_table.py
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.headlines import figures_of, headlines_of
from benchmarks.rendering import RESULTS_FOLDER, markdown, milliseconds, percent, times
from benchmarks.sharded_tables import sharded_part
from benchmarks.step_rows import UNSYNCHRONISED
from benchmarks.targets import JUDGES, Result, Verdict
from benchmarks.tf_tables import tf_part

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN = "<!-- benchmarks: begin; written by `make readme` -->"
END = "<!-- benchmarks: end -->"
RESULTS = README.parent / "docs" / "results.md"
CLAIMS = README.parent / "docs" / "validation.md"
TABLES = README.parent / "docs" / "benchmarks.md"
SHARDED_BEGIN = "<!-- bytes and steps: begin; written by `make readme` -->"
SHARDED_END = "<!-- bytes and steps: end -->"
SHARDED = README.parent / "docs" / "sharded.md"
TF_BEGIN = "<!-- steps of Keras: begin; written by `make readme` -->"
TF_END = "<!-- steps of Keras: end -->"
TF_PAGE = README.parent / "docs" / "tensorflow_benchmark.md"
NAMES = (
    *("sync-2-2", "sync-4-2", "sync-4-2-bert", "step-2-2", "first-names-2-2", "idle-2-2"),
    *("simulator-speed", "emulation", "simulator", "policies", "degradation"),
    *("emulated-training", "emulated-box"),
    *("wire", "throughput", "tf-step"),
)
_CONTENDERS = ("Gloo", "Open MPI", "coarse, copy", "coarse, device", "bare sum", "memcpy")
_COMMANDS = {
    "sync": "make bench-sync",
    "step": "make bench-step",
    "first-names": "make bench-first-names",
    "idle": "make bench-idle",
    "simulator-speed": "make bench-simulator",
    "emulation": "make bench-emulation",
    "simulator": "make bench-simulator-accuracy",
    "emulated-training": "make bench-emulated-training",
    "emulated-box": "make bench-emulated-box",
    "policies": "make bench-policies",
    "degradation": "make bench-degradation",
    "wire": "make bench-wire",
    "throughput": "make bench-throughput",
    "tf-step": "make bench-tf-step",
}

Results = Mapping[str, Result]


def main() -> None:
    """Put the figures into the README, and the tables into their pages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = read_results(RESULTS_FOLDER)
    claims = CLAIMS.read_text(encoding="utf-8")
    rewrite(README, figures_of(results, claims), BEGIN, END)
    rewrite(RESULTS, headlines_of(results, claims), BEGIN, END)
    rewrite(TABLES, section_of(results), BEGIN, END)
    rewrite(SHARDED, sharded_part(results), SHARDED_BEGIN, SHARDED_END)
    rewrite(TF_PAGE, tf_part(results.get("tf-step")), TF_BEGIN, TF_END)
    print(f"{README.name}, {RESULTS.name}, {TABLES.name}: {len(results)} of {len(NAMES)} results")


def rewrite(page: Path, section: str, begin_line: str, end_line: str) -> None:
    """Replace what stands between the page's markers."""
    text = with_section(page.read_text(encoding="utf-8"), section, begin_line, end_line)
    page.write_text(text, encoding="utf-8")


def read_results(folder: Path) -> dict[str, Result]:
    """The results that are there, by name."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}


def with_section(text: str, section: str, begin_line: str = BEGIN, end_line: str = END) -> str:
    """The text with everything between the two markers replaced."""
    before, begin, rest = text.partition(begin_line)
    _, end, after = rest.partition(end_line)
    if not begin or not end:
        raise ValueError(
            f"the page has no lines {begin_line!r} and {end_line!r}, between which the tables go; add them"
        )
    return f"{before}{begin_line}\n{section}\n{end_line}{after}"


def section_of(results: Results) -> str:
    """All tables as Markdown."""
    verdicts = [(name, verdict) for name, judge in JUDGES.items() for verdict in judge(results.get(name))]
    parts = [targets_table(verdicts)]
    parts += [sync_part(results[name]) for name in ("sync-2-2", "sync-4-2", "sync-4-2-bert") if name in results]
    parts += [step_part(results["step-2-2"])] if "step-2-2" in results else []
    missing = [f"{name} (`{_command_of(name)}`)" for name in NAMES if name not in results]
    parts += [f"Not measured yet: {', '.join(missing)}."] if missing else []
    parts.append(source_lines(results))
    return "\n\n".join(parts)


def targets_table(verdicts: Sequence[tuple[str, Verdict]]) -> str:
    """Every target with what was found."""
    lines = [
        [
            verdict.target,
            verdict.limit,
            ", ".join(f"{place} {value}" for place, value in verdict.found) or "-",
            verdict.reached,
            f"{name}.json",
        ]
        for name, verdict in verdicts
    ]
    return "Targets, live ones for 2 workers and 2 memory devices:\n\n" + markdown(
        ["", "target", "found", "reached", "result"], lines
    )


def sync_part(result: Result) -> str:
    """Milliseconds of one synchronisation, and how often faster coarse is than its peers."""
    rows = {(row["workload"], row["contender"]): row for row in result["rows"]}
    present = [name for name in _CONTENDERS if any(contender == name for _, contender in rows)]
    ratios = {(row["workload"], row["contender"]): row["times_faster_than_gloo"] for row in result["ratios"]}
    lines = []
    for workload in dict.fromkeys(workload for workload, _ in rows):
        cells = [milliseconds(rows[workload, name]["median_s"]) for name in present]
        faster = [times(ratios.get((workload, name))) for name in present if name.startswith("coarse")]
        lines.append([workload, *cells, *faster])
    ours = [f"{name} vs Gloo" for name in present if name.startswith("coarse")]
    title = f"Milliseconds of one synchronisation, {_team(result)}, float32, medians:"
    return f"{title}\n\n" + markdown(["", *present, *ours], lines)


def step_part(result: Result) -> str:
    """Milliseconds of a training step by batch size."""
    rows = {(row["rows_per_worker"], row["contender"]): row for row in result["rows"]}
    contenders = list(dict.fromkeys(contender for _, contender in rows))
    synchronised = [name for name in contenders if name != UNSYNCHRONISED]
    lines = []
    for size in dict.fromkeys(size for size, _ in rows):
        cells = [rows[size, name] for name in contenders]
        lines.append(
            [
                str(size),
                f"{cells[0]['unsynchronised_memcpys']:.1f}",
                *(milliseconds(row["median_step_s"]) for row in cells),
                *(percent(rows[size, name]["added_share"]) for name in synchronised),
            ]
        )
    title = f"Milliseconds of a training step of the demo's GPT, {_team(result)}, medians:"
    columns = ["batch", "step in memcpys", *contenders, *(f"{name} adds" for name in synchronised)]
    return f"{title}\n\n" + markdown(columns, lines)


def _command_of(name: str) -> str:
    """What makes a result; those of several teams have one command."""
    return _COMMANDS.get(name) or next(command for of, command in _COMMANDS.items() if name.startswith(f"{of}-"))


def _team(result: Result) -> str:
    return f"{result['num_workers']} workers and {result['num_devices']} memory devices"


def source_lines(results: Results) -> str:
    """Where each result comes from."""
    return "\n".join(
        f"- {name}.json: {result['kind']} on {result['date'][:10]}, {result['machine']['cpu_model']}, "
        f"{result['machine']['num_cores']} cores, {result['versions']['mpi']}, torch {result['versions']['torch']}; "
        f"`{result['command']}`"
        for name, result in results.items()
    )


if __name__ == "__main__":
    main()
