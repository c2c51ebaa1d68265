"""Whether a change made synchronisation or a training step slower: an older tree beside this one, pair by pair.

    git worktree add ../before before-one-house
    python benchmarks/two_trees.py ../before [--pairs 20] [--only tensors|resnet50|step]

Each pair is a run of sync.py (or step.py) from either tree, one after the other; who begins alternates. The ratio of a
pair is the time in this tree over the time in the older one. A machine that others use is now fast and now slow; so
each run measures a control too, which no change of coarse touches (a memcpy of the same bytes, or a step that is not
synchronised), and beside the plain ratio stands that of times in units of the same run's control. Printed are medians
of the ratios and intervals that hold the true median with at least 95 %, found by the order of the ratios alone. Kind:
measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json
from coarse.launch.mpirun import AppContext, mpirun_argv, mpirun_beside

HERE = Path(__file__).resolve().parents[1]
CONFIDENCE = 0.95
LEAST_PAIRS = 10
T = TypeVar("T")
Case = tuple[str, str]
"""A workload, and who carries it out."""
_RESULT = "two-trees-run"
_LIMIT_S = 300
_SYNC = ("--contenders", "coarse,coarse-device,memcpy")
_RUNS = {
    "tensors": ("sync", "--sizes", "4KiB,256KiB,1MiB,16MiB", "--sets", "", *_SYNC),
    "resnet50": ("sync", "--sizes", "", "--sets", "resnet50", *_SYNC),
    "step": ("step", "--rows", "4", "--rounds", "10", "--contenders", "none,coarse"),
}
"""The script of each part, and what it measures."""
_CONTROLS = ("memcpy", "unsynchronised")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The ratios of one workload, new over old, pair by pair."""

    workload: str
    contender: str
    ratios: list[float]
    """Of seconds."""
    in_controls: list[float]
    """Of times in units of the same run's control; all 1 for the control itself."""


def interval_of_median(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Two of the values, between which the median of their distribution lies with at least that confidence.

    Raises:
        ValueError: There are too few values for any interval.
    """
    ordered = sorted(values)
    number = len(ordered)
    outside = 0.0
    for below in range(number // 2):
        outside += 2 * math.comb(number, below) / 2**number
        if outside > 1 - confidence:
            if below == 0:
                break
            return ordered[below - 1], ordered[number - below]
    raise ValueError(f"{number} values are too few for an interval of {confidence:.0%}: at least 6 are needed for 95 %")


def times_of(tree: Path, part: str) -> dict[Case, float]:
    """The median time of each workload in one run of that tree's script, in seconds."""
    script, *measured = _RUNS[part]
    program = str(tree / "benchmarks" / f"{script}.py")
    ranks = (sys.executable, program, "--workers", "2", "--devices", "2", "--name", _RESULT, *measured)
    command = mpirun_argv(
        mpirun_beside(sys.executable, os.environ),
        [AppContext(num_ranks=4, command=ranks)],
        exports={},
        as_root=os.geteuid() == 0,
        fault_tolerant=False,
    )
    environ = importing_from(tree)
    run = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=_LIMIT_S)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}:\n{run.stderr}")
    path = tree / "benchmarks" / "results" / f"{_RESULT}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    path.unlink()
    size, seconds = ("workload", "median_s") if script == "sync" else ("rows_per_worker", "median_step_s")
    return {(str(row[size]), row["contender"]): row[seconds] for row in rows}


def importing_from(tree: Path) -> dict[str, str]:
    """This environment, in which Python imports coarse and its benchmarks from that tree."""
    return os.environ | {"PYTHONPATH": str(tree)}


def control_of(found: Mapping[Case, T], workload: str) -> T:
    """What was found of a workload's control."""
    return next(value for (of, contender), value in found.items() if of == workload and contender in _CONTROLS)


def compare(part: str, older: Path, num_pairs: int) -> list[Comparison]:
    """Every workload's ratios over that many pairs."""
    ratios: dict[Case, list[float]] = {}
    for pair in range(num_pairs):
        order = (older, HERE) if pair % 2 == 0 else (HERE, older)
        times = {tree: times_of(tree, part) for tree in order}
        for case, seconds in times[HERE].items():
            ratios.setdefault(case, []).append(seconds / times[older][case])
        print(f"{part}: pair {pair + 1} of {num_pairs}", file=sys.stderr, flush=True)
    found = []
    for (workload, contender), values in ratios.items():
        controls = control_of(ratios, workload)
        in_controls = [value / control for value, control in zip(values, controls, strict=True)]
        found.append(Comparison(workload=workload, contender=contender, ratios=values, in_controls=in_controls))
    return found


def in_words(ratios: Sequence[float]) -> str:
    """The median and its interval."""
    low, high = interval_of_median(ratios)
    return f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"


def require_trees(older: Path) -> None:
    """Python must take coarse from the tree that it is told, not from where it is installed.

    Raises:
        SystemExit: The folder is no tree of coarse, or Python takes coarse from elsewhere.
    """
    for tree in (older, HERE):
        with tempfile.TemporaryDirectory() as elsewhere:
            command = [sys.executable, "-c", "import coarse; print(coarse.__file__)"]
            environ = importing_from(tree)
            run = subprocess.run(command, cwd=elsewhere, env=environ, check=True, capture_output=True, text=True)
        found = run.stdout.strip()
        if Path(found).resolve().parents[1] != tree.resolve():
            raise SystemExit(f"coarse should come from {tree}, but Python finds {found}: name a worktree of coarse")


def main() -> None:
    """Compare, print a table and write what was found into benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=20, help="at least 10, default %(default)s")
    parser.add_argument("--only", choices=_RUNS, help="one part alone")
    parser.add_argument("--name", help="of the file in benchmarks/results, default two-trees or two-trees-PART")
    options = parser.parse_args()
    if options.pairs < LEAST_PAIRS:
        parser.error(f"--pairs is at least {LEAST_PAIRS}, got {options.pairs}")
    older = options.older.resolve()
    require_trees(older)
    parts = [options.only] if options.only else list(_RUNS)
    found = [row for part in parts for row in compare(part, older, options.pairs)]
    described = subprocess.run(
        ["git", "-C", str(older), "describe", "--tags", "--always"], check=True, capture_output=True, text=True
    ).stdout.strip()
    columns = ["workload", "new / old (95 %)", "in units of the control (95 %)", "pairs"]
    lines = [
        [f"{f.contender}, {f.workload}", in_words(f.ratios), in_words(f.in_controls), str(len(f.ratios))] for f in found
    ]
    print_table(f"This tree beside {described} (measured)", columns, lines)
    only = ["--only", options.only] if options.only else []
    result = provenance("two_trees.py", ["OLDER", *only, "--pairs", str(options.pairs)], 1) | {
        "older": described,
        "rows": [asdict(row) for row in found],
    }
    name = options.name or "-".join(["two-trees", *only[1:]])
    print(f"\nwritten to {write_json(name, result)}")


if __name__ == "__main__":
    main()
