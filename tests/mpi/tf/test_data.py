"""Datasets under CoarseStrategy: who gets what, how data end, what predict gives back; two jobs check the claims."""

import ast
from pathlib import Path

import pytest

from tests.support.claims import read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 2


def claims_of(program: str) -> list[str]:
    """The names in a program's CLAIMS; importing it would join a job."""
    tree = ast.parse((HERE / program).read_text())
    (claims,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CLAIMS"
    ]
    return [ast.unparse(name) for name in claims.elts]


CLAIMS = [(program, name) for program in ("data_claims.py", "data_end_claims.py") for name in claims_of(program)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """By program its folder and what it has printed, errors of TensorFlow's too."""
    found = {}
    for program in dict(CLAIMS):
        folder = tmp_path_factory.mktemp("job")
        completed = mpirun(NUM_WORKERS + 1, HERE / program, folder, timeout_s=600, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
        assert completed.returncode == 0, completed.stderr
        found[program] = folder, completed
    return found


@pytest.fixture(scope="module")
def reports(jobs):
    """By program and claim what each worker found."""
    return {program: read_reports(folder, NUM_WORKERS) for program, (folder, _) in jobs.items()}


@pytest.mark.parametrize(("program", "claim"), CLAIMS, ids=lambda value: value)
def test_a_claim_about_data_holds_on_every_rank(reports, program, claim):
    assert reports[program][claim] == [""] * NUM_WORKERS


def test_data_that_are_in_no_files_are_not_split_by_files_in_vain(jobs):
    _, completed = jobs["data_claims.py"]
    assert "auto_shard" not in completed.stderr
