"""Features beside the kernel, in jobs: one of somebody else's, what an idle device imports, and leaves before."""

import json
from pathlib import Path

import pytest

from tests.support.launch import mpirun

HERE = Path(__file__).parent
OF_FEATURES = ("luwu", "odc", "snapshots", "pool", "horovod")
MOST_MODULES = 95
"""Of a device that has summed one tensor."""
TALLY = '["tests.support.tally:SPEC"]'


def two_nodes(folder: Path) -> Path:
    """Write a partition table of a worker and a device on each of two nodes."""
    ranks = [("worker", 0), ("memory_device", 0), ("worker", 1), ("memory_device", 1)]
    path = folder / "partition.toml"
    path.write_text("".join(
        f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{node}"\n' for rank, (role, node) in enumerate(ranks)
    ))  # fmt: skip
    return path


def test_a_feature_of_somebody_elses_has_records_messages_and_counters(tmp_path):
    completed = mpirun(4, HERE / "tallied.py", tmp_path, TALLY, two_nodes(tmp_path))
    assert completed.returncode == 0, completed.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}").read_text()) == [[[0, 1], [1, 10]], 1.0]


def test_on_a_machine_that_is_not_here_it_needs_costs(tmp_path):
    emulated = {"COARSE_EMULATE": f'machine = "cxl-cz120", out = "{tmp_path}"'}
    completed = mpirun(4, HERE / "tallied.py", tmp_path, TALLY, "2:2", env=emulated)
    assert completed.returncode == 0, completed.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}").read_text()) == [[[0, 1], [1, 10]], 1.0]
    without = TALLY.replace("SPEC", "WITHOUT_COSTS")
    completed = mpirun(4, HERE / "tallied.py", tmp_path, without, "2:2", env=emulated)
    assert completed.returncode != 0
    assert "UnsupportedError" in completed.stderr
    assert "no cost is stated of Count" in completed.stderr


@pytest.mark.parametrize(
    ("named", "said"),
    [('["no.such:SPEC"]', "the feature 'no.such:SPEC' cannot be imported"), ('"tally"', "features must be a list")],
)
def test_one_that_is_not_there_is_refused_on_all_ranks(tmp_path, named, said):
    completed = mpirun(2, HERE / "tallied.py", tmp_path, named, "1:1")
    assert completed.returncode != 0
    assert said in completed.stderr
    assert "ConfigError" in completed.stderr


def test_a_device_that_no_feature_was_asked_of_imports_none(tmp_path):
    completed = mpirun(2, HERE / "lean.py", tmp_path, env={"COARSE_PARTITION": "1:1"}, preloaded="")
    assert completed.returncode == 0, completed.stderr
    for role in ("worker", "device"):
        names = json.loads((tmp_path / role).read_text())
        assert [name for name in names if name.split(".")[1:2] and name.split(".")[1] in OF_FEATURES] == []
        assert len(names) <= MOST_MODULES


@pytest.mark.parametrize("is_spread", [False, True], ids=["one node", "two nodes"])
def test_a_device_that_hears_of_a_feature_late_knows_who_has_left(tmp_path, is_spread):
    partition = two_nodes(tmp_path) if is_spread else "2:2"
    completed = mpirun(4, HERE / "left_before.py", tmp_path / "last", env={"COARSE_PARTITION": str(partition)})
    assert completed.returncode == 0, completed.stderr
    assert "has shut down without taking it; call coarse.snapshot() on all ranks" in completed.stdout
    assert not (tmp_path / "last").exists()
