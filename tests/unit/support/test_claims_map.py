"""tests/claims.tsv says where each test under mpirun went, and every test that it names is there."""

import ast
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.support.launch import REPOSITORY

ROWS = [line.split("\t") for line in (REPOSITORY / "tests" / "claims.tsv").read_text(encoding="utf-8").splitlines()]


def test_each_of_the_old_tests_stands_once():
    assert all(len(row) == 2 for row in ROWS)
    assert len({old for old, _ in ROWS}) == len(ROWS) == 1010


def test_every_test_that_is_named_is_a_function_of_its_file():
    names = defaultdict(set)
    for _, new in ROWS:
        path, _, name = new.partition("::")
        names[path].add(name.partition("[")[0])
    for path, wanted in names.items():
        tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
        assert wanted <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, path


@pytest.mark.slow
@pytest.mark.test_all
def test_every_id_that_is_named_is_collected():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--test-all", "tests/mpi"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=600)
    assert {new for _, new in ROWS} <= set(done.stdout.splitlines())
