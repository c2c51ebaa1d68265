"""The README is short and names commands that exist; the tree of docs/files.md is the tree."""

import re
from pathlib import Path

import pytest

from benchmarks.readme_table import BEGIN, END

REPOSITORY = Path(__file__).parents[3]
README = (REPOSITORY / "README.md").read_text()
TABLES = (REPOSITORY / "docs" / "benchmarks.md").read_text()
FILES = (REPOSITORY / "docs" / "files.md").read_text()
MOST_LINES = 120


def test_the_readme_is_short():
    assert len(README.splitlines()) <= MOST_LINES


def tree_paths() -> list[str]:
    """The paths of the tree, those that stand indented below a folder with that folder."""
    (tree,) = re.findall(r"^## The tree\n\n.*?```text\n(.*?)```", FILES, re.MULTILINE | re.DOTALL)
    paths: list[str] = []
    folders: dict[int, str] = {}
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        path = folders.get(indent - 2, "") + line.split()[0]
        folders[indent] = path
        paths.append(path)
    return paths


@pytest.mark.parametrize("path", tree_paths())
def test_every_path_of_the_tree_exists(path):
    assert (REPOSITORY / path).is_dir() if path.endswith("/") else (REPOSITORY / path).is_file()


def test_every_module_and_folder_of_the_package_stands_in_the_tree():
    package = REPOSITORY / "coarse"
    modules = {f"coarse/{path.name}" for path in package.glob("*.py")}
    folders = {f"{path.parent.relative_to(REPOSITORY)}/" for path in package.rglob("*/__init__.py")}
    assert modules | folders <= set(tree_paths())


def test_every_folder_of_tests_experiments_and_benchmarks_stands_in_the_tree():
    roots = ("tests", "experiments", "benchmarks")
    sources = [path for root in roots for path in REPOSITORY.glob(f"{root}/*/*.py")]
    folders = {f"{path.parent.relative_to(REPOSITORY)}/" for path in sources}
    assert folders <= set(tree_paths())


def test_every_package_of_the_repository_stands_in_the_tree():
    packages = {f"{path.parent.name}/" for path in REPOSITORY.glob("*/__init__.py")}
    assert packages <= set(tree_paths())


def test_every_path_that_the_page_of_files_names_exists():
    named = set(re.findall(r"`((?:coarse|tf_strategy|tests|benchmarks|experiments|docs)/[\w./]*)`", FILES))
    assert len(named) > 20
    assert not [path for path in named if not (REPOSITORY / path).exists()]


@pytest.mark.parametrize("page", [README, TABLES], ids=["README.md", "benchmarks.md"])
def test_every_make_target_that_a_page_names_exists(page):
    rules = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", page, re.MULTILINE)) <= set(rules)


def test_the_page_of_benchmarks_names_every_benchmark_of_make():
    rules = re.findall(r"^(bench-[a-z-]+|validate):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert len(rules) > 15
    assert set(rules) <= set(re.findall(r"`make ([a-z-]+)", TABLES))


@pytest.mark.parametrize("page", [README, TABLES], ids=["README.md", "benchmarks.md"])
def test_the_numbers_stand_between_their_markers(page):
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)
