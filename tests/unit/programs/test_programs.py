"""Programs that the Makefile starts begin, and what benchmarks, experiments and tests import of this tree is there."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import REPOSITORY, parts_of

OWN = ("coarse", "tf_strategy", "experiments", "benchmarks", "tests")
UNTYPED = ("experiments", "benchmarks", "tests")
"""Whose imports mypy does not look at."""
IMPORTERS = sorted(path for name in UNTYPED for path in (REPOSITORY / name).rglob("*.py"))
MAKEFILE = (REPOSITORY / "Makefile").read_text()
PROGRAMS = sorted(
    {*re.findall(r"\b(?:benchmarks|experiments)/\w+\.py", MAKEFILE), *re.findall(r"-m (experiments[\w.]+)", MAKEFILE)}
)


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of this tree, or the folder of a package without one."""
    place = REPOSITORY.joinpath(*module.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py", place)
    return next((one for one in candidates if one.is_file() or (one == place and one.is_dir())), None)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: its statements and those within `if`, `try` and `with`."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from statements(getattr(statement, field, []))


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a module's file gives."""
    names = set()
    for statement in statements(ast.parse(path.read_text()).body):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(statement.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.With():
                names |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return frozenset(names)


def missing_imports(path: Path) -> list[str]:
    """What a file imports of this tree, in functions too, that is not there."""
    missing = []
    for node in parts_of(path).imports:
        if isinstance(node, ast.Import):
            asked = [(alias.name, "") for alias in node.names]
        else:
            asked = [(node.module or "", alias.name) for alias in node.names]
        for module, name in asked:
            if module.split(".")[0] in OWN and not is_there(module, name):
                missing.append(f"line {node.lineno}: {module} {name}".rstrip())
    return missing


def is_there(module: str, name: str) -> bool:
    """Whether a module is there, and a name in it, or a module of that name below it; "" asks for the module alone."""
    found = file_of(module)
    if found is None or not name or file_of(f"{module}.{name}") is not None:
        return found is not None
    return found.is_file() and bool({name, "__getattr__"} & names_in(found))


def test_whatever_is_imported_of_this_tree_is_there():
    missing = {str(path): found for path in IMPORTERS if (found := missing_imports(path))}
    assert not missing


def test_a_name_that_is_gone_is_found(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("def late():\n    from coarse.errors import CoarseError, Gone\n    import coarse.gone\n")
    assert missing_imports(script) == ["line 2: coarse.errors Gone", "line 3: coarse.gone"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """What each program printed, and how it ended."""
    folder = tmp_path_factory.mktemp("programs")
    names = [str(REPOSITORY / program) if program.endswith(".py") else program for program in PROGRAMS]
    command = [sys.executable, Path(__file__).parent / "helped.py", folder, *names]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=300)
    return {program: (folder / f"{number}.txt").read_text() for number, program in enumerate(PROGRAMS)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_that_make_starts_begins(printed, program):
    assert "usage: " in printed[program]
    assert printed[program].endswith("\nended with 0")
