"""Runs every test, also those that `make test` leaves out, and writes how many passed and how long they took.

    python -m tests.results.run
"""

import datetime
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "test_all.txt"
_PARTS = {
    "unit": ("--dist", "worksteal", "tests/unit", "tests/test_layering.py"),
    "under mpirun": ("--dist", "loadfile", "--no-loadscope-reorder", "tests/mpi"),
}
_SUMMARY = re.compile(r"^=* ?(\d+ (?:passed|failed|error).* in [\d.]+s.*?)(?: =+)?$", re.MULTILINE)
"""The last line of pytest's output, such as "3 passed, 1 skipped in 2.00s"."""


def run_part(options: tuple[str, ...]) -> tuple[int, str]:
    """The exit status of a part, and its summary; what pytest prints is shown as it comes."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "--test-all", *options]
    printed = ""
    with subprocess.Popen(command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            printed += line
    summaries = _SUMMARY.findall(printed)
    return tests.returncode, summaries[-1] if summaries else "pytest did not end"


def main() -> int:
    """Run both parts; 0 if all tests passed."""
    found = {name: run_part(options) for name, options in _PARTS.items()}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    parts = [f"{name}: {summary}" for name, (_, summary) in found.items()]
    lines = ["Command: make test-all", f"Date: {today}", *parts]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return max(status for status, _ in found.values())


if __name__ == "__main__":
    raise SystemExit(main())
