"""Sources of this tree, as tests of their rules read them: imports, calls and functions, from one walk of each."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]


class Parts(NamedTuple):
    """Nodes of a source, wherever they stand in it."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    calls: tuple[ast.Call, ...]
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]


@cache
def parts_of(path: Path) -> Parts:
    """Return the parts of a file."""
    return parts_in(path.read_text())


def parts_in(source: str) -> Parts:
    """Return the parts of a text."""
    imports, calls, functions = [], [], []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
    return Parts(tuple(imports), tuple(calls), tuple(functions))


def imported_names(parts: Parts) -> set[str]:
    """Return every dotted name that is imported: `a.b` and `a.b.c` of `from a.b import c`, since c may be a module."""
    names = set()
    for node in parts.imports:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(path: Path) -> str:
    """Return the dotted name of a source, by its path in the tree; a package's __init__ has the package's own."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
