"""Snapshots of torch models and optimizers in live jobs."""

import sys
from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports
from tests.support.launch import complete, mpirun

HERE = Path(__file__).parent
LAYOUTS = {"one process": (1, 1), "2:2": (4, 2)}
"""Name -> ranks, workers."""


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    num_ranks, num_workers = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("snapshots")
    completed = mpirun(num_ranks, HERE / "snapshot_claims.py", folder, folder, timeout_s=120, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", claims_of(HERE / "snapshot_claims.py"))
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_devices_write_a_models_snapshot_without_torch(tmp_path):
    run = [sys.executable, "-m", "coarse", "run", "--workers", "2", "--devices", "2"]
    completed = complete([*run, str(HERE / "torch_free_devices.py"), str(tmp_path)])
    assert completed.returncode == 0, completed.stderr
    said = [line for line in completed.stdout.splitlines() if line.startswith("device")]
    assert said == ["device without torch"] * 2
