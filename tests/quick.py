"""Unit tests of what has changed since the last commit, or by it where nothing has: what `make test-quick` runs.

A changed module's tests are those of the folder that mirrors its own, and those that import it; a changed test is run
itself, and a changed file of tests/support has those run that import it.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.sources import REPOSITORY, imported_names, module_of, parts_in

UNIT = Path("tests/unit")
ALWAYS = Path("tests/test_layering.py")


def room_of(path: Path, is_folder: frozenset[Path]) -> Path | None:
    """Return the innermost folder of unit tests that mirrors a file's; None where only that of all unit tests would."""
    parts = path.parts[1:] if path.parts[0] == "coarse" else path.parts
    for length in range(len(parts) - 1, 0, -1):
        room = UNIT.joinpath(*parts[:length])
        if room in is_folder:
            return room
    return None


def chosen_tests(changed: Iterable[Path], sources: dict[Path, str], is_folder: frozenset[Path]) -> list[Path]:
    """Return the test files and rooms to run for changed files; `sources` has the text of every unit test."""
    imports = {path: imported_names(parts_in(text)) for path, text in sources.items()}
    wanted: set[Path] = set()
    for path in changed:
        if path in sources:
            wanted.add(path)
        elif path.suffix == ".py":
            module = module_of(path)
            wanted |= {test for test, names in imports.items() if module in names}
            room = room_of(path, is_folder) if path.parts[0] != "tests" else None
            wanted |= {room} if room is not None else set()
    return sorted(one for one in wanted if not any(other in one.parents for other in wanted))


def changed_files() -> list[Path]:
    """Return the files that differ from the last commit, and new ones; those of that commit where none does."""
    listed = _git("diff", "--name-only", "--diff-filter=d", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in listed or _git("diff", "--name-only", "--diff-filter=d", "HEAD~1", "HEAD")]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> None:
    files = [path.relative_to(REPOSITORY) for path in (REPOSITORY / UNIT).rglob("test_*.py")]
    sources = {path: (REPOSITORY / path).read_text() for path in files}
    folders = frozenset(parent for path in files for parent in path.parents)
    wanted = [str(path) for path in chosen_tests(changed_files(), sources, folders)]
    print(f"tests: {' '.join([*wanted, str(ALWAYS)])}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *wanted, str(ALWAYS)]
    sys.exit(subprocess.run(command, cwd=REPOSITORY, check=False).returncode)


if __name__ == "__main__":
    main()
