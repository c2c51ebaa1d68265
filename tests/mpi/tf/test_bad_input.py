"""CoarseStrategy: bad input and ends of ranks; typed errors in words that help, never a hang, nothing left."""

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports
from tests.support.launch import Completed, complete, mpirun, running

HERE = Path(__file__).parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What both workers found of each claim, in one job."""
    folder = tmp_path_factory.mktemp("tf_misuse")
    completed = mpirun(3, HERE / "misuse.py", folder, env=QUIET, timeout_s=TIMEOUT_S, preloaded="tensorflow")
    assert (folder / "worker1.json").exists(), completed.stderr
    return read_reports(folder, 2)


@pytest.mark.parametrize("claim", claims_of(HERE / "misuse_claims.py"))
def test_misuse_is_refused_on_every_rank(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def ended(how: str, folder: Path) -> Completed:
    """A job by `coarse run`, under ULFM, whose last worker ends in mid-fit."""
    command = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "1"]
    return complete([*command, str(HERE / "ended_rank.py"), how, str(folder)], timeout_s=TIMEOUT_S)


def ended_under_mpirun(how: str, folder: Path, *, workers: int = 2, ulfm: bool = True) -> Completed:
    """The same by mpirun alone."""
    environ = QUIET | {"COARSE_PARTITION": f"{workers}:1"}
    return mpirun(
        workers + 1, HERE / "ended_rank.py", how, folder, env=environ, timeout_s=TIMEOUT_S, ulfm=ulfm,
        preloaded="tensorflow",
    )  # fmt: skip


def require_nothing_left(folder: Path) -> None:
    """No worker runs any more."""
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert len(pids) >= 2
    assert not running(pids)


def report_of(folder: Path) -> dict[str, object]:
    """The error that worker 0 caught; every later synchronisation raised the same."""
    assert (folder / "again").exists()
    found: dict[str, object] = json.loads((folder / "rank0.json").read_text())
    return found


def test_who_is_killed_in_mid_fit_is_named_to_all_survivors_whether_they_catch_it_or_not(tmp_path):
    completed = ended_under_mpirun("kill", tmp_path, workers=3)
    assert completed.returncode != 0
    report = report_of(tmp_path)
    assert report["kind"] == "DeadRankError"
    assert report["dead_rank"] == 2
    for words in ("rank 0 waited at synchronisation", "worker 2 (MPI rank 2) died"):
        assert words in str(report["text"])
    for rank in (0, 1):
        said = f"coarse: MPI rank {rank} ends with DeadRankError: rank {rank} waited at synchronisation"
        assert said in completed.stderr
    assert "MPI_Abort" not in completed.stderr
    require_nothing_left(tmp_path)


@pytest.mark.test_all
def test_under_plain_mpirun_a_death_in_mid_fit_ends_the_job(tmp_path):
    completed = ended_under_mpirun("kill", tmp_path, ulfm=False)
    assert completed.returncode != 0
    require_nothing_left(tmp_path)


def test_who_leaves_in_mid_fit_is_named(tmp_path):
    completed = ended_under_mpirun("exit", tmp_path)
    assert completed.returncode != 0
    report = report_of(tmp_path)
    assert report["kind"] == "DeadRankError"
    assert report["dead_rank"] == 1
    assert "rank 1 (MPI rank 1) has shut down; see why" in str(report["text"])
    require_nothing_left(tmp_path)


def test_an_exception_in_a_step_of_one_rank_ends_the_job(tmp_path):
    completed = ended_under_mpirun("raise", tmp_path)
    assert completed.returncode != 0
    assert "coarse: MPI rank 1 raised " in completed.stderr
    assert "ArithmeticError: the layer is broken" in completed.stderr
    require_nothing_left(tmp_path)


def test_a_rank_that_does_not_come_is_named_and_ctrl_c_ends_a_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    completed = ended("interrupt", tmp_path)
    assert completed.returncode == 128 + signal.SIGINT
    report = report_of(tmp_path)
    assert report["kind"] == "StallError"
    assert "rank 0 waited at synchronisation" in str(report["text"])
    assert "ranks [1] have not come in time" in str(report["text"])
    require_nothing_left(tmp_path)


def test_a_callback_that_stops_one_rank_alone_is_told_to_all(tmp_path):
    completed = ended_under_mpirun("stop", tmp_path)
    assert completed.returncode != 0
    assert "MismatchError" in completed.stderr
    assert "only some ranks stop" in completed.stderr
    require_nothing_left(tmp_path)
