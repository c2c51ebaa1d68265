"""Variables and values of TensorFlow on two workers: nothing is combined within one process alone."""

import ast
from pathlib import Path

import pytest

from tests.support.claims import read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
PROGRAM = HERE / "variable_claims.py"
CLAIMS = next(  # read, not imported: the program begins with coarse.init()
    [ast.unparse(claim) for claim in node.value.elts]
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and ast.unparse(node.targets[0]) == "CLAIMS"
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What both workers found of each claim, in one job."""
    folder = tmp_path_factory.mktemp("tf_variables")
    environ = {"COARSE_PARTITION": "2:1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    completed = mpirun(3, PROGRAM, folder, env=environ, timeout_s=180.0)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 2)


@pytest.mark.parametrize("claim", CLAIMS)
def test_on_two_workers(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
