"""Makes mutants of the code that decides and of the code that moves data, and says which tests kill them.

    python -m tests.mutants.run [--only PATTERN] [--stage NAME ...] [--survivors] [--list] [--results FILE]

Each mutant is one small change in a copy of the tracked files, as they are now; the stages of tests run there in order
until one fails or takes too long. results.json keeps the fate of each, and for a survivor the reason, which is written
by hand. The status is 1 where a mutant that was killed before survives the same stage. It is our own because mutmut 3
leaves decorated functions and whatever stands outside functions alone, cosmic-ray has one test command for all mutants,
and neither draws a few by a seed.
"""

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import psutil

from tests.mutants.mutations import Mutation, chosen, mutations

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = HERE / "results.json"
SEED = 1
PACKAGES = ("protocol", "client", "proxy", "storage", "collectives")
PER_PACKAGE = 12
AT_ONCE = 2
STAGES = {
    "unit": ("tests/unit/PACKAGE",),
    "loopback": ("tests/unit/drivers", "tests/unit/support", "tests/unit/simulation"),
    "ranks": (
        *("tests/mpi/drivers", "tests/mpi/arrays/test_collectives.py", "tests/mpi/arrays/test_arrays.py"),
        *("-k", "live or (test_collectives and not ulfm) or 2:3 or (2:2 and tiny)"),
    ),
}
"""What pytest is given, from the quickest to the most telling."""
LIMITS_S = {"unit": 600.0, "loopback": 900.0, "ranks": 1200.0}
"""Many times what the stages take; a mutant that takes longer hangs, and is killed."""

Row = dict[str, object]


def drawn(seed: int = SEED) -> list[Mutation]:
    """The mutants: as many of each package."""
    found = []
    for package in PACKAGES:
        paths = sorted((REPOSITORY / "coarse" / package).rglob("*.py"))
        texts = {str(path.relative_to(REPOSITORY)): path.read_text() for path in paths}
        candidates = [mutation for name, text in texts.items() for mutation in mutations(name, text)]
        found += chosen(candidates, PER_PACKAGE, seed)
    return found


def first_failure(output: str) -> str:
    """The first test that failed, from what pytest printed; pytest itself where it names none."""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return found[1] if found else "pytest itself"


def key_of(row: Row) -> tuple[object, ...]:
    """What Mutation.key is of a row."""
    return row["file"], row["function"], row["change"]


def is_killed(row: Row) -> bool:
    """Whether a stage killed the mutant of a row."""
    return "killed_by" in row


def survived_stages(row: Row) -> list[object]:
    """The stages that the mutant of a row survived; none where one killed it."""
    survived = row.get("survived", [])
    assert isinstance(survived, list)
    return survived


def merged(known: Row | None, found: Row) -> Row:
    """The row of a mutant after a run of some stages: a survivor of others has survived these too, the reason why it
    may survive stays, and so does the stage that killed it where that has not run."""
    if known is None or is_killed(found):
        return found
    if is_killed(known) and not escaped(known, found):
        return known
    survived = [stage for stage in STAGES if stage in survived_stages(known) + survived_stages(found)]
    return {**found, "survived": survived, **({"reason": known["reason"]} if "reason" in known else {})}


def escaped(known: Row | None, found: Row) -> bool:
    """Whether a mutant now survives the stage that killed it before."""
    return known is not None and not is_killed(found) and known.get("killed_by") in survived_stages(found)


def summary(rows: Iterable[Row]) -> str:
    """How many were killed by each stage, and how many survived with and without a reason."""
    rows = list(rows)
    killed = Counter(str(row["killed_by"]) for row in rows if is_killed(row))
    survivors = [row for row in rows if not is_killed(row)]
    excused = sum("reason" in row for row in survivors)
    by_stage = ", ".join(f"{killed[stage]} by {stage}" for stage in STAGES)
    return (
        f"{len(rows)} mutants: {killed.total()} killed ({by_stage}), {len(survivors)} survived, "
        f"{excused} of them with a reason"
    )


class Copy:
    """A copy of the repository's tracked files, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)

    def put(self, name: str, source: str) -> None:
        """Write a source file, and remove what Python compiled of the last one: a mutant may be as long and as old."""
        path = self.folder / name
        path.write_text(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def failed(self, stage: str, package: str) -> str:
        """The first test of a stage that failed or why there is none; empty where all passed."""
        tests = [argument.replace("PACKAGE", package) for argument in STAGES[stage]]
        settings = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command = [sys.executable, "-m", "pytest", *settings, *tests]
        environ = {**os.environ, "PYTHONPATH": str(self.folder)}
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=output, stderr=subprocess.STDOUT)
            try:
                status = process.wait(LIMITS_S[stage])
            except subprocess.TimeoutExpired:
                return f"none: not over after {LIMITS_S[stage]:.0f} s"
            finally:
                _end(process)
            output.seek(0)
            return first_failure(output.read()) if status else ""

    def fate(self, mutation: Mutation, stages: Iterable[str]) -> Row:
        """The row of a mutant: which stage killed it by which test, or which stages it survived."""
        row: Row = {name: getattr(mutation, name) for name in ("file", "line", "function", "change")}
        source, survived = (self.folder / mutation.file).read_text(), []
        self.put(mutation.file, mutation.applied(source))
        try:
            for stage in stages:
                if test := self.failed(stage, mutation.file.split("/")[1]):
                    return {**row, "killed_by": stage, "test": test}
                survived.append(stage)
            return {**row, "survived": survived}
        finally:
            self.put(mutation.file, source)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended, with all that it started."""
    with suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def fates(wanted: list[Mutation], stages: list[str], folder: Path) -> Iterator[Row]:
    """The rows of the mutants as they come; two copies, each tried first as it is.

    Raises:
        SystemExit: a test fails without any mutant.
    """
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for number in range(AT_ONCE):
        copies.put(Copy(folder / f"copy{number}"))

    def one(mutation: Mutation) -> Row:
        copy = copies.get()
        try:
            return copy.fate(mutation, stages)
        finally:
            copies.put(copy)

    def unchanged(stage: str, package: str) -> str:
        copy = copies.get()
        try:
            return copy.failed(stage, package)
        finally:
            copies.put(copy)

    packages = sorted({mutation.file.split("/")[1] for mutation in wanted})
    baselines = [(stage, name) for stage in stages for name in (packages if stage == "unit" else packages[:1])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (stage, name), test in zip(baselines, pool.map(lambda pair: unchanged(*pair), baselines), strict=True):
            if test:
                sys.exit(f"{stage} of {name} fails without any mutant: {test}")
        for future in as_completed([pool.submit(one, mutation) for mutation in wanted]):
            yield future.result()


def written(path: Path, rows: Mapping[tuple[object, ...], Row]) -> None:
    """Write the results, in the order of files and lines."""
    ordered = sorted(rows.values(), key=lambda row: (str(row["file"]), row["line"], str(row["change"])))
    content = {"command": "python -m tests.mutants.run", "seed": SEED, "summary": summary(ordered), "mutants": ordered}
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    """Write the results; 1 where a mutant survives that did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or function has this pattern")
    parser.add_argument("--stage", action="append", choices=tuple(STAGES), help="this stage alone; may be repeated")
    parser.add_argument("--survivors", action="store_true", help="those that no stage has killed yet")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    stages = [stage for stage in STAGES if stage in (asked.stage or STAGES)]
    all_drawn = drawn()
    rows: dict[tuple[object, ...], Row] = {}
    if asked.results.exists():
        keys = {mutation.key for mutation in all_drawn}
        rows = {key_of(row): row for row in json.loads(asked.results.read_text())["mutants"] if key_of(row) in keys}
    wanted = [
        mutation
        for mutation in all_drawn
        if re.search(asked.only, f"{mutation.file} {mutation.function}")
        and not (asked.survivors and is_killed(rows.get(mutation.key, {})))
    ]
    if asked.list:
        print(*(f"{m.file}:{m.line} {m.function}: {m.change}" for m in wanted), sep="\n")
        return 0
    new_survivors, begun_s = [], time.time()
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        for found in fates(wanted, stages, Path(folder)):
            known = rows.get(key_of(found))
            name = "{file}:{line} {function}: {change}".format(**found)
            if escaped(known, found):
                new_survivors.append(name)
            rows[key_of(found)] = merged(known, found)
            written(asked.results, rows)
            said = f"killed by {found['killed_by']}: {found['test']}" if is_killed(found) else "SURVIVED"
            print(f"{time.time() - begun_s:5.0f} s  {name}\n         {said}", flush=True)
    print(summary(rows.values()))
    print(*(f"killed before, and now survives: {name}" for name in new_survivors), sep="\n")
    return 1 if new_survivors else 0


if __name__ == "__main__":
    sys.exit(main())
