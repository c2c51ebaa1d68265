"""Tensors and models on GPUs, for which stand-ins stand here, live: the bits of the same on the CPU."""

import json
from pathlib import Path

import pytest

from tests.support.claims import IN_TIME_S, claims_of, read_reports, require_held
from tests.support.launch import mpirun
from tests.support.layouts import parameters, partition_table

HERE = Path(__file__).parent
LAYOUTS = {
    "devices on the GPU": ('memory = "cuda:0"\n', ""),
    "devices on the host": ("", 'policy = "devices"\n'),
    "a ring of the workers": ("", 'worker_collective = "ring"\n'),
    "workers alone": ("", 'mode = "allreduce"\n'),
}
"""What the table says first, and settings."""


def run(folder: Path, program: str, num_workers: int, memory: str = "", settings: str = "") -> dict[str, list[str]]:
    """What each worker found of each claim of a program, beside one memory device."""
    (folder / "partition.toml").write_text(memory + partition_table(num_workers, 1))
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "partition.toml"\n{settings}')
    environ = {
        "COARSE_CONFIG": str(folder / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"num_gpus": 2, "total_bytes": 1 << 30}),
    }
    completed = mpirun(
        num_workers + 1, HERE / program, folder, env=environ, timeout_s=120, joins_first=True, preloaded="torch"
    )
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.fixture(scope="module", params=parameters(LAYOUTS, {"devices on the GPU", "a ring of the workers"}))
def reports(request, tmp_path_factory):
    """What each worker found of each claim on a layout."""
    return run(tmp_path_factory.mktemp("layout"), "gpu_torch_claims.py", 2, *LAYOUTS[request.param])


@pytest.mark.parametrize("claim", claims_of(HERE / "gpu_torch_claims.py"))
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.fixture(scope="module", params=parameters(LAYOUTS, {"devices on the GPU"}))
def pattern_reports(request, tmp_path_factory):
    """What each worker found of how scripts for other libraries call them."""
    return run(tmp_path_factory.mktemp("patterns"), "gpu_pattern_claims.py", 2, *LAYOUTS[request.param])


@pytest.mark.parametrize("claim", claims_of(HERE / "gpu_pattern_claims.py"))
def test_of_scripts_for_other_libraries(pattern_reports, claim):
    require_held(pattern_reports, [claim])


@pytest.fixture(scope="module")
def group_reports(tmp_path_factory):
    """What each worker found of the backend "coarse" and of process sets."""
    return run(tmp_path_factory.mktemp("groups"), "gpu_group_claims.py", 3)


def test_of_groups_on_stand_ins_alone(group_reports):
    require_held(group_reports, group_reports.keys() - set(claims_of(HERE / "gpu_group_claims.py")))


@pytest.mark.parametrize("claim", claims_of(HERE / "gpu_group_claims.py"))
def test_of_groups(group_reports, claim):
    require_held(group_reports, [claim])


@pytest.mark.parametrize("what", ["optimizer", "group", "sharded"])
@pytest.mark.parametrize("settings", ["", pytest.param('mode = "allreduce"\n', marks=pytest.mark.test_all)])
def test_the_death_of_a_worker_is_told_in_time(tmp_path, what, settings):
    (tmp_path / "partition.toml").write_text(partition_table(3, 1))
    (tmp_path / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "partition.toml"\n{settings}')
    environ = {
        "COARSE_CONFIG": str(tmp_path / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"num_gpus": 1, "total_bytes": 1 << 31}),
    }
    mpirun(
        4, HERE / "killed_gpu_worker.py", tmp_path, what, env=environ, ulfm=True, timeout_s=120, joins_first=True,
        preloaded="torch",
    )  # fmt: skip
    reports = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 2)]
    for report in reports:
        assert report["kind"] == "DeadRankError", report
        assert "worker 1 (MPI rank 1) died" in report["text"]
        assert report["waited_s"] < IN_TIME_S
