"""Whether a change made synchronisation or a training step slower: an older tree beside this one, in turns.

    git worktree add ../before before-one-house
    python benchmarks/two_trees.py ../before [--starts 18] [--rounds 14] [--only 1MiB,16MiB]

A start is three jobs at once: two of the older tree and one of this. In each round every job has a turn at every case
while the others sleep, in an order that is drawn anew; turns are so short that whatever disturbs the machine disturbs
all three. The ratio of a start is the median over its rounds of the time in this tree over the time in the older one;
its control is that of the older tree's second job over the first, which no change can move. Since memory and processes
lie otherwise after each start, medians and intervals are over starts, not over rounds: an interval holds the true
median with at least 95 %, by the order of the ratios alone. Kind: measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TextIO

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.contenders.coarse_numpy import fused_slices
from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json
from benchmarks.two_trees_job import COPY, DEVICE, NUM_DEVICES, NUM_WORKERS, STEP
from benchmarks.workloads import Workload, gradient_set, single_tensor
from coarse.launch.mpirun import AppContext, mpirun_argv, mpirun_beside

HERE = Path(__file__).resolve().parents[1]
CONFIDENCE = 0.95
FEWEST_STARTS = 10
_NUM_WARM_UP_ROUNDS = 2
_START_LIMIT_S, _TURN_LIMIT_S = 120, 60
_JOBS = ("older", "new", "older again")
_NUM_OPERATIONS = {"4KiB": 100, "256KiB": 60, "1MiB": 60, "16MiB": 12, "resnet50": 1}
"""Of a turn, by workload: some tens of milliseconds."""
_STEP, _STEP_ROWS, _STEPS = "step", "4", 1
WORKLOADS = (*_NUM_OPERATIONS, _STEP)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a job does in a turn."""

    workload: str
    way: str
    num_operations: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The ratios of one case, start by start."""

    workload: str
    way: str
    ratios: list[float]
    """This tree over the older one."""
    controls: list[float]
    """The older tree over itself."""


def cases(chosen: Collection[str] = WORKLOADS) -> list[Case]:
    """What is compared of these workloads."""
    found = [
        Case(workload=workload, way=way, num_operations=number)
        for workload, number in _NUM_OPERATIONS.items()
        for way in (COPY, DEVICE)
        if workload in chosen
    ]
    return [*found, *[Case(workload=_STEP_ROWS, way=STEP, num_operations=_STEPS)] * (_STEP in chosen)]


def buckets() -> dict[str, list[int]]:
    """The elements of each workload's buckets, fused as this tree fuses them."""
    return {
        workload: [part.stop - part.start for part in fused_slices(_workload(workload))] for workload in _NUM_OPERATIONS
    }


def _workload(name: str) -> Workload:
    return gradient_set(name) if name[0].isalpha() else single_tensor(name)


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


def importing_from(tree: Path) -> dict[str, str]:
    """This environment, in which Python imports coarse from that tree; and torch no backend that is installed, which is
    this tree's."""
    return os.environ | {"PYTHONPATH": str(tree), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


class Job:
    """The ranks of one tree, asleep but for their turns."""

    def __init__(self, tree: Path, workers: Sequence[TextIO]) -> None:
        self._tree = tree
        self._workers = workers

    def take_turn(self, case: Case) -> float:
        """Seconds of one operation, of the slowest worker.

        Raises:
            SystemExit: A worker has ended or takes too long.
        """
        line = json.dumps([case.workload, case.way, case.num_operations])
        try:
            for worker in self._workers:
                print(line, file=worker, flush=True)
            return max(float(json.loads(worker.readline())) for worker in self._workers)
        except (OSError, ValueError) as error:
            text = f"the job of {self._tree} gave no time of {case}: {error!r}; its output is above"
            raise SystemExit(text) from None


@contextmanager
def started(tree: Path) -> Iterator[Job]:
    """A job whose workers have called; its ranks end with it."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path := str(Path(folder) / "turns"))
        listening.listen(NUM_WORKERS)
        listening.settimeout(_START_LIMIT_S)
        program = str(HERE / "benchmarks" / "two_trees_job.py")
        ranks = (sys.executable, program, path, json.dumps(buckets()))
        command = mpirun_argv(
            mpirun_beside(sys.executable, os.environ),
            [AppContext(num_ranks=NUM_WORKERS + NUM_DEVICES, command=ranks)],
            exports={},
            as_root=os.geteuid() == 0,
            fault_tolerant=False,
        )
        run = stack.enter_context(subprocess.Popen(command, env=importing_from(tree), stdin=subprocess.DEVNULL))
        stack.callback(_end, run)
        workers = []
        for _ in range(NUM_WORKERS):
            told, _address = listening.accept()
            stack.enter_context(told).settimeout(_TURN_LIMIT_S)
            workers.append(stack.enter_context(told.makefile("rw", encoding="utf-8")))
        yield Job(tree, workers)
        for worker in workers:
            worker.close()


def _end(run: subprocess.Popen[bytes]) -> None:
    """Wait for a job that has been told to end, and end it where it does not."""
    try:
        run.wait(_TURN_LIMIT_S)
    except subprocess.TimeoutExpired:
        run.terminate()


def compare(
    jobs: dict[str, Job], chosen: Sequence[Case], num_rounds: int, order: random.Random
) -> dict[Case, tuple[float, float]]:
    """By case the ratio and the control of one start: medians over its rounds."""
    times: dict[tuple[Case, str], list[float]] = {}
    for round_number in range(-_NUM_WARM_UP_ROUNDS, num_rounds):
        for case in chosen:
            for name in order.sample(_JOBS, len(_JOBS)):
                seconds = jobs[name].take_turn(case)
                if round_number >= 0:
                    times.setdefault((case, name), []).append(seconds)
    return {case: (_ratio(times, case, "new"), _ratio(times, case, "older again")) for case in chosen}


def _ratio(times: dict[tuple[Case, str], list[float]], case: Case, name: str) -> float:
    return median(mine / other for mine, other in zip(times[case, name], times[case, "older"], strict=True))


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
    parser.add_argument("--starts", type=int, default=18, help="at least 10, default %(default)s")
    parser.add_argument("--rounds", type=int, default=14, help="of a start, default %(default)s")
    parser.add_argument("--only", help=f"some workloads alone, of {','.join(WORKLOADS)}")
    parser.add_argument("--name", default="two-trees", help="of the file in benchmarks/results, default %(default)s")
    options = parser.parse_args()
    if options.starts < FEWEST_STARTS or options.rounds < 1:
        parser.error(f"--starts is at least {FEWEST_STARTS} and --rounds 1, got {options.starts} and {options.rounds}")
    workloads = options.only.split(",") if options.only else WORKLOADS
    if unknown := set(workloads) - set(WORKLOADS):
        parser.error(f"unknown workloads {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    older, chosen = options.older.resolve(), cases(workloads)
    require_trees(older)
    order = random.Random(0)
    found = {case: Comparison(workload=case.workload, way=case.way, ratios=[], controls=[]) for case in chosen}
    for start in range(options.starts):
        with ExitStack() as stack:
            jobs = {name: stack.enter_context(started(HERE if name == "new" else older)) for name in _JOBS}
            for case, (ratio, control) in compare(jobs, chosen, options.rounds, order).items():
                found[case].ratios.append(ratio)
                found[case].controls.append(control)
        print(f"start {start + 1} of {options.starts}", file=sys.stderr, flush=True)
    described = subprocess.run(
        ["git", "-C", str(older), "describe", "--tags", "--always"], check=True, capture_output=True, text=True
    ).stdout.strip()
    columns = ["workload", "new / old (95 %)", "old / old (95 %)", "starts"]
    lines = [
        [f"{row.way}, {row.workload}", in_words(row.ratios), in_words(row.controls), str(len(row.ratios))]
        for row in found.values()
    ]
    print_table(f"This tree beside {described} (measured)", columns, lines)
    only = ["--only", options.only] if options.only else []
    given = ["OLDER", "--starts", str(options.starts), "--rounds", str(options.rounds), *only]
    result = provenance("two_trees.py", given, 1) | {
        "older": described,
        "rows": [asdict(row) for row in found.values()],
    }
    print(f"\nwritten to {write_json(options.name, result)}")


if __name__ == "__main__":
    main()
