"""The README's tree of files is the tree."""

import re
from pathlib import Path

import pytest

from benchmarks.readme_table import BEGIN, END

REPOSITORY = Path(__file__).parents[3]
README = (REPOSITORY / "README.md").read_text()


def tree_paths() -> list[str]:
    """The paths of the tree, those within coarse/ with their folder."""
    (tree,) = re.findall(r"^## Files\n\n```text\n(.*?)```", README, re.MULTILINE | re.DOTALL)
    lines = [line.rstrip() for line in tree.splitlines()]
    return [("coarse/" if line.startswith("  ") else "") + line.split()[0] for line in lines]


@pytest.mark.parametrize("path", tree_paths())
def test_every_path_of_the_tree_exists(path):
    assert (REPOSITORY / path).is_dir() if path.endswith("/") else (REPOSITORY / path).is_file()


def test_every_module_and_folder_of_the_package_stands_in_the_tree():
    package = REPOSITORY / "coarse"
    modules = {f"coarse/{path.name}" for path in package.glob("*.py")}
    folders = {f"coarse/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert modules | folders <= set(tree_paths())


def test_every_package_of_the_repository_stands_in_the_tree():
    packages = {f"{path.parent.name}/" for path in REPOSITORY.glob("*/__init__.py")}
    assert packages <= set(tree_paths())


def test_every_make_target_that_the_readme_names_exists():
    rules = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", README, re.MULTILINE)) <= set(rules)


def test_the_numbers_stand_between_their_markers():
    assert README.count(BEGIN) == README.count(END) == 1
    assert README.index(BEGIN) < README.index(END)
