"""Importing tf_strategy starts no MPI: only init() may, which watches who has come."""

import ast

from tests.support.sources import Parts
from tests.test_layering import PATHS, TEXTS, imported_modules, imported_roots


def at_import(name: str) -> Parts:
    """The imports that happen when a module is imported: not those within functions, nor those for type checkers."""
    body = ast.parse(TEXTS[name]).body
    return Parts(tuple(node for node in body if isinstance(node, ast.Import | ast.ImportFrom)), (), ())


def loaded_with(name: str) -> set[str]:
    """A source of the repository, its packages, and all sources that come with them."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        module = ahead.pop()
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            one = ".".join(parts[:length])
            if one in PATHS and one not in found:
                found.add(one)
                ahead.extend(imported_modules(at_import(one)))
    return found


def test_no_module_that_comes_with_tf_strategy_imports_mpi():
    starting = {name for name in loaded_with("tf_strategy") if "mpi4py" in imported_roots(at_import(name))}
    assert not starting


def test_all_of_tf_strategy_but_what_is_asked_for_by_name_comes_with_it():
    loaded = loaded_with("tf_strategy")
    assert {"tf_strategy.sums.rounds", "coarse.session", "coarse.client.handle"} <= loaded
    assert "mpi4py" in imported_roots(at_import("coarse.runtime"))
    assert all(name.partition(".")[0] in ("coarse", "tf_strategy") for name in loaded)
