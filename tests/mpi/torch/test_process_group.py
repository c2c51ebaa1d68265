"""torch.distributed's backend "coarse", live."""

import json
from pathlib import Path

import pytest

from tests.support.claims import IN_TIME_S, claims_of, read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 3
TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    folder = tmp_path_factory.mktemp("claims")
    environ = {"COARSE_PARTITION": f"{NUM_WORKERS}:1"}
    completed = mpirun(
        NUM_WORKERS + 1, HERE / "process_group_claims.py", folder, env=environ, timeout_s=TIMEOUT_S, preloaded="torch"
    )
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, NUM_WORKERS)


@pytest.mark.parametrize("claim", claims_of(HERE / "process_group_claims.py"))
def test_of_the_backend(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_whoever_waits_for_a_dead_rank_is_told_which(tmp_path):
    environ = {"COARSE_PARTITION": "4:1"}
    mpirun(5, HERE / "process_group_death.py", tmp_path, env=environ, ulfm=True, timeout_s=TIMEOUT_S, preloaded="torch")
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 2, 3)]
    for report in found:
        assert "worker 1 (MPI rank 1) died" in report["text"]
        assert report["waited_s"] < IN_TIME_S
    assert [report["kind"] for report in found] == ["DeadRankError", "DeadRankError", "RuntimeError"]
    assert "DeadRankError: " in found[2]["text"]  # a future's errors are C++'s, which have one type
