"""Datasets and variables under CoarseStrategy: who gets what, how data end, what is combined; in two jobs."""

from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 2
JOBS = {"data_claims": ("data_claims",), "data_end_claims": ("variable_claims", "data_end_claims")}
"""By its last module, what a job checks; no job goes on after data that end too early."""


CLAIMS = [
    (job, claim) for job, modules in JOBS.items() for module in modules for claim in claims_of(HERE / f"{module}.py")
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """By job its folder and what it has printed, errors of TensorFlow's too."""
    found = {}
    for job, modules in JOBS.items():
        folder = tmp_path_factory.mktemp("job")
        environ = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        completed = mpirun(
            NUM_WORKERS + 1, HERE / "data_job.py", folder, *modules, env=environ, timeout_s=600, preloaded="tensorflow"
        )
        assert completed.returncode == 0, completed.stderr
        found[job] = folder, completed
    return found


@pytest.fixture(scope="module")
def reports(jobs):
    """By job and claim what each worker found."""
    return {job: read_reports(folder, NUM_WORKERS) for job, (folder, _) in jobs.items()}


@pytest.mark.parametrize(("job", "claim"), CLAIMS, ids=lambda value: value)
def test_a_claim_about_data_holds_on_every_rank(reports, job, claim):
    assert reports[job][claim] == [""] * NUM_WORKERS


def test_data_that_are_in_no_files_are_not_split_by_files_in_vain(jobs):
    _, completed = jobs["data_claims"]
    assert "auto_shard" not in completed.stderr
