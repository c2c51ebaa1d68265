"""Runs the tests of tf_strategy under each TensorFlow supported; writes the results, and docs/tensorflow.md's table.

    python -m tests.versions.run [--only PATTERN] [--suite unit|mpi] [--environments FOLDER] [--results FILE]

Every tensorflow-*.txt beside this file pins one environment, which is built when it is first wanted or its pins have
changed (1.5 GB each). The tests run in one after another, each by the Python, the packages and the mpirun of its own.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = HERE / "results.json"
PINS = sorted(HERE.glob("tensorflow-*.txt"))
ENVIRONMENTS = REPOSITORY / ".versions"
PAGE = REPOSITORY / "docs" / "tensorflow.md"
BEGIN = "<!-- versions: begin; written by `make test-versions` -->"
END = "<!-- versions: end -->"
SUITES = {"unit": ("tests/unit/tf_strategy",), "mpi": ("tests/mpi/tf", "tests/mpi/docs/test_tf_page.py")}
_OPEN_MPI_SETTINGS = {
    "prte-mca-params.conf": "rmaps_default_mapping_policy=:oversubscribe\nhwloc_default_binding_policy=none\n",
    "openmpi-mca-params.conf": "btl=^ofi\n",
}
"""As the Makefile has them: more ranks than cores, none bound; no search for networks that are not there."""


def chosen(pins: Iterable[Path], pattern: str) -> list[Path]:
    """The files of pins whose names without `tensorflow-` have the pattern, in order.

    Raises:
        ValueError: none has it, with the names that there are.
    """
    names = {path.stem.removeprefix("tensorflow-"): path for path in sorted(pins)}
    found = [path for name, path in names.items() if re.search(pattern, name)]
    if not found:
        raise ValueError(f"--only wants a pattern of one of {', '.join(names)}; got {pattern!r}, which none has")
    return found


def pinned(text: str) -> dict[str, str]:
    """The versions of a requirements file by the name of the package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def counts(junit: str) -> dict[str, int]:
    """How many tests passed, failed and were skipped, from pytest's JUnit report."""
    suites = list(ET.fromstring(junit).iter("testsuite"))
    total, errors, failures, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "errors", "failures", "skipped")
    )
    failed = errors + failures
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def failures(junit: str) -> list[str]:
    """The tests that failed, from pytest's JUnit report."""
    cases = ET.fromstring(junit).iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [f"{case.get('classname', '')}.{case.get('name', '')}".strip(".") for case in failed]


def has_passed(row: dict[str, object]) -> bool:
    """Whether in every suite that was run some tests passed and none failed."""
    suites = [row[suite] for suite in SUITES if suite in row]
    return all(isinstance(suite, dict) and suite["passed"] and not suite["failed"] for suite in suites)


def table(results: dict[str, dict[str, object]]) -> str:
    """Versions and verdicts as a table in Markdown."""
    lines = ["| TensorFlow | Keras | numpy | Python | unit tests | tests under mpirun | date |", "|" + "---|" * 7]
    for _, row in sorted(results.items(), key=lambda item: (version(str(item[1]["tensorflow"])), item[0])):
        versions = [str(row[name]) for name in ("tensorflow", "keras", "numpy", "python")]
        verdicts = [verdict(row[suite]) if suite in row else "not run" for suite in SUITES]
        lines.append("| " + " | ".join([*versions, *verdicts, str(row["date"])]) + " |")
    return "\n".join(lines)


def with_table(page: str, lines: str) -> str:
    """The page with these lines between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def verdict(suite: object) -> str:
    """The counts of a suite in words, those of zero left out."""
    assert isinstance(suite, dict)
    return ", ".join(f"{number} {word}" for word, number in suite.items() if number) or "none ran"


def version(text: str) -> tuple[int, ...]:
    """A version's numbers, to compare: 2.9 is before 2.18."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def environment(pins: Path, folder: Path) -> Path:
    """The Python of the environment of these pins, built where it is missing or its pins are others."""
    home = folder / pins.stem
    python, installed = home / "bin" / "python", home / "installed.txt"
    if installed.exists() and installed.read_text() == pins.read_text():
        return python
    print(f"building {home}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-r", str(pins)], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", "-e", str(REPOSITORY)], check=True)
    subprocess.run([*pip, "check"], check=True)
    (home / "etc").mkdir(exist_ok=True)
    for name, text in _OPEN_MPI_SETTINGS.items():
        (home / "etc" / name).write_text(text)
    installed.write_text(pins.read_text())
    return python


def tried(pins: Path, python: Path, suites: Iterable[str]) -> dict[str, object]:
    """The row of one environment: its versions, and what became of the tests of these suites."""
    packages = pinned(pins.read_text())
    probe = [str(python), "-c", "import platform; print(platform.python_version())"]
    row: dict[str, object] = {
        "tensorflow": packages["tensorflow-cpu"],
        "keras": packages["keras"],
        "numpy": packages["numpy"],
        "python": subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    for suite in suites:
        row[suite] = run_suite(python, SUITES[suite])
    return row


def run_suite(python: Path, paths: Iterable[str]) -> dict[str, int]:
    """What became of the tests in these paths, which print themselves."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        environ = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        settings = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]  # jobs have their own time limits
        command = [str(python), "-m", "pytest", *settings, f"--junitxml={report}", *paths]
        subprocess.run(command, check=False, cwd=REPOSITORY, env=environ)
        if not report.exists():
            return {"passed": 0, "failed": 1, "skipped": 0}
        print(*failures(report.read_text()), sep="\n", flush=True)
        return counts(report.read_text())


def kept(path: Path) -> dict[str, dict[str, object]]:
    """The rows of a file of results by environment; none where there is no file."""
    return json.loads(path.read_text())["environments"] if path.exists() else {}


def write(path: Path, rows: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """The results as JSON, and what they are now: known rows of other environments stay while their pins exist."""
    known = kept(path)
    exist = {pins.stem for pins in PINS}
    merged = {name: row for name, row in sorted({**known, **rows}.items()) if name in exist}
    summary = {"command": "python -m tests.versions.run", "environments": merged}
    path.write_text(json.dumps(summary, indent=1) + "\n")
    return merged


def main() -> int:
    """Write the results; 1 where a test failed or a suite had none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="environments whose names have this pattern, such as 2.19")
    parser.add_argument("--suite", choices=tuple(SUITES), help="this suite alone")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    try:
        wanted = chosen(PINS, asked.only)
    except ValueError as error:
        parser.error(str(error))
    rows: dict[str, dict[str, object]] = {}
    for pins in wanted:
        suites = [asked.suite] if asked.suite else list(SUITES)
        rows[pins.stem] = tried(pins, environment(pins, asked.environments), suites)
        known = write(asked.results, rows)
    if asked.results == RESULTS:
        PAGE.write_text(with_table(PAGE.read_text(), table(known)))
    print(table(known))
    return 0 if all(has_passed(row) for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
