"""Runs torch's tests of its distributed package on the backend "coarse", and writes what became of each.

    python -m tests.conformance.run [--backend coarse|gloo] [--only PATTERN] [--results FILE]

Of torch/testing/_internal/distributed/distributed_test.py, as installed, all tests with the decorators of Gloo, on
4 workers (8 where a test wants so many) without a GPU. A job runs test after test; where one fails or hangs, the next
job goes on behind it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from coarse.launch.mpirun import AppContext, mpirun_argv, mpirun_beside
from coarse.protocol.clock import WallClock
from tests.conformance.rank import RANKS_FOLDER
from tests.conformance.reasons import REASONS

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
_TEST_S = 240.0
"""A test that takes longer hangs."""
_NUM_DEVICES = 1
_WORKERS = 4
_MANY_WORKERS = 8
"""For the tests that want so many, which are few."""
_WANTS_MANY = "Skipped due to small world size."


def all_tests() -> list[str]:
    """The names of torch's tests, in order of the file."""
    program = (
        "from tests.conformance.rank import test_class_of; c = test_class_of('gloo', 4);"
        "print(*[n for n in dir(c) if n.startswith('test_')])"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=HERE.parents[1])
    return done.stdout.split()


def run_job(backend: str, names: list[str], log: Path, num_workers: int) -> dict[str, tuple[str, str]]:
    """What became of the first of the tests: of all where none failed or hung."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / RANKS_FOLDER).mkdir()
        command = (sys.executable, "-m", "tests.conformance.rank", backend, folder, str(_TEST_S / 2), *names)
        argv = mpirun_argv(
            mpirun_beside(sys.executable, os.environ),
            [AppContext(num_ranks=num_workers + _NUM_DEVICES, command=command)],
            exports={"COARSE_PARTITION": f"{num_workers}:{_NUM_DEVICES}", "OMP_NUM_THREADS": "1"},
            as_root=os.geteuid() == 0,
            fault_tolerant=False,
        )
        environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        with log.open("a") as output:
            job = subprocess.Popen(argv, stdout=output, stderr=output, env=environ, cwd=HERE.parents[1])
            try:
                wait(job, Path(folder) / RANKS_FOLDER)
            finally:
                job.terminate()
                job.wait()
        return verdicts(Path(folder) / RANKS_FOLDER, names, num_workers)


def wait(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the job ends, or has written nothing for as long as a test may take."""
    clock = WallClock()
    seen, since_s = -1, clock.now_s()
    while job.poll() is None:
        written = sum(path.stat().st_size for path in folder.iterdir())
        if written != seen:
            seen, since_s = written, clock.now_s()
        if clock.now_s() - since_s > _TEST_S:
            return
        try:
            job.wait(0.5)
        except subprocess.TimeoutExpired:
            continue


def verdicts(folder: Path, names: list[str], num_workers: int) -> dict[str, tuple[str, str]]:
    """By test what all ranks say; the first that not all have ended with a pass or a skip has failed."""
    reports = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.iterdir())]
    found: dict[str, tuple[str, str]] = {}
    for position, name in enumerate(names):
        rows = [report[position] for report in reports if len(report) > position]
        failed = [row for row in rows if row["verdict"] == "failed"]
        if failed:
            found[name] = ("failed", failed[0]["text"])
            break
        if len(rows) < num_workers:
            found[name] = ("failed", f"{num_workers - len(rows)} ranks did not end")
            break
        skipped = [row["text"] for row in rows if row["verdict"] == "skipped"]
        found[name] = ("skipped", skipped[0]) if skipped else ("passed", "")
    return found


def run_all(backend: str, names: list[str], log: Path, num_workers: int) -> dict[str, tuple[str, str]]:
    """What became of every test; one that failed among others is tried again alone."""
    found: dict[str, tuple[str, str]] = {}
    left = list(names)
    while left:
        done = run_job(backend, left, log, num_workers)
        for name, (verdict, _) in done.items():
            if verdict == "failed" and len(left) > 1 and name not in REASONS:
                done[name] = run_job(backend, [name], log, num_workers)[name]
        found |= done
        left = left[len(done) :]
        failed = [f"{name}: {text}" for name, (verdict, text) in done.items() if verdict == "failed"]
        print(f"{len(found)} of {len(names)}", *failed, flush=True)
    return found


def main() -> int:
    """Write the results; 1 where a test failed that is not listed with a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("coarse", "gloo"), default="coarse")
    parser.add_argument("--only", default="", help="tests whose names have this pattern")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "coarse-conformance.log")
    asked = parser.parse_args()
    names = [name for name in all_tests() if re.search(asked.only, name)]
    found = run_all(asked.backend, names, asked.log, _WORKERS)
    large = [name for name, (_, text) in found.items() if text == _WANTS_MANY]
    found |= run_all(asked.backend, large, asked.log, _MANY_WORKERS)
    write(asked.results, asked.backend, found)
    unexplained = [name for name, (verdict, _) in found.items() if verdict == "failed" and name not in REASONS]
    print(f"{len(unexplained)} failed without a known reason", *unexplained, sep="\n  ")
    return 1 if unexplained else 0


def write(path: Path, backend: str, found: dict[str, tuple[str, str]]) -> None:
    """The results as JSON: known results of other tests stay."""
    import torch

    tests = json.loads(path.read_text())["tests"] if path.exists() else {}
    for name, (verdict, text) in found.items():
        if verdict == "failed" and name in REASONS and backend == "coarse":
            verdict, text = "not supported", REASONS[name]
        tests[name] = {"verdict": verdict, **({"why": text} if text else {})}
    counts: dict[str, int] = {}
    for row in tests.values():
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    summary = {
        "command": "python -m tests.conformance.run" + ("" if backend == "coarse" else f" --backend {backend}"),
        "torch": torch.__version__,
        "workers": f"{_WORKERS}, and {_MANY_WORKERS} where a test wants so many",
        "counts": counts,
        "tests": dict(sorted(tests.items())),
    }
    path.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
