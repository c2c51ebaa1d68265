"""Runs tests that `make test` leaves out, and writes how many passed and how long they took.

    python -m tests.results.run            every test (make test-all)
    python -m tests.results.run hosts      jobs on kernels of their own (make test-hosts)
"""

import datetime
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_SUMMARY = re.compile(r"^=* ?(\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*?)(?: =+)?$", re.MULTILINE)
"""The last line of pytest's output, such as "3 passed, 1 skipped in 2.00s"."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Tests that one command runs: by name of a part what pytest is given, and the variables that ask for them."""

    command: str
    file: str
    parts: dict[str, tuple[str, ...]]
    environment: dict[str, str]


KINDS = {
    "all": Kind(
        command="make test-all",
        file="test_all.txt",
        parts={
            "unit": ("-n", "2", "--test-all", "--dist", "worksteal", "tests/unit", "tests/test_layering.py"),
            "under mpirun": ("-n", "2", "--test-all", "--dist", "loadfile", "--no-loadscope-reorder", "tests/mpi"),
        },
        environment={},
    ),
    "hosts": Kind(
        command="make test-hosts",
        file="hosts.txt",
        parts={"guests of QEMU (emulated processors)": ("-v", "--durations=10", "tests/hosts")},
        environment={"COARSE_TEST_HOSTS": "1"},
    ),
}


def run_part(options: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str]:
    """Run a part, showing what pytest prints as it comes; return the exit status, and the summary."""
    command = [sys.executable, "-m", "pytest", *options]
    printed = ""
    with subprocess.Popen(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            printed += line
    summaries = _SUMMARY.findall(printed)
    return tests.returncode, summaries[-1] if summaries else "pytest did not end"


def main(arguments: list[str]) -> int:
    """Run all parts of a kind; 0 if no test failed. Where all were skipped the file stays as it is."""
    kind = KINDS[arguments[0] if arguments else "all"]
    found = {name: run_part(options, kind.environment) for name, options in kind.parts.items()}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    if any("passed" in summary or "failed" in summary for _, summary in found.values()):
        parts = [f"{name}: {summary}" for name, (_, summary) in found.items()]
        lines = [f"Command: {kind.command}", f"Date: {today}", *parts]
        (HERE / kind.file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return max(status for status, _ in found.values())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
