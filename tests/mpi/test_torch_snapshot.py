"""Snapshots of torch models and optimizers in live jobs."""

import sys

import pytest

from tests.mpi.claims import read_reports
from tests.mpi.launch import PROGRAMS, complete, mpirun
from tests.mpi.programs.torch_snapshot_claims import CLAIMS

LAYOUTS = {"one process": (1, 1), "2:2": (4, 2)}
"""Name -> ranks, workers."""


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    num_ranks, num_workers = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("snapshots")
    completed = mpirun(num_ranks, "torch_snapshot_claims.py", folder, folder, timeout_s=120)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_devices_write_a_models_snapshot_without_torch(tmp_path):
    run = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "2"]
    completed = complete([*run, str(PROGRAMS / "torch_free_devices.py"), str(tmp_path)])
    assert completed.returncode == 0, completed.stderr
    said = [line for line in completed.stdout.splitlines() if line.startswith("device")]
    assert said == ["device without torch"] * 2
