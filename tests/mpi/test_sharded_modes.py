"""Bytes between nodes, traces and refusals of the sharding modes, on four workers of two nodes."""

from pathlib import Path

import pytest

from tests.mpi.claims import read_reports
from tests.mpi.launch import mpirun
from tests.mpi.programs import sharded_uneven
from tests.mpi.programs.sharded_modes import claims
from tests.mpi.sharding_job import reports_of


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of("sharded_modes.py", tmp_path_factory.mktemp("modes"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in claims(Path())])
def test_on_two_nodes(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.fixture(scope="module")
def uneven_reports(tmp_path_factory):
    """The same of three workers, of whom two share a node."""
    folder = tmp_path_factory.mktemp("uneven")
    rows = (f'[[rank]]\nrank = {rank}\nrole = "both"\nnode = "node{rank // 2}"\n' for rank in range(3))
    (folder / "partition.toml").write_text("".join(rows))
    environ = {"COARSE_PARTITION": str(folder / "partition.toml")}
    completed = mpirun(3, "sharded_uneven.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 3)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in sharded_uneven.CLAIMS])
def test_on_uneven_nodes(uneven_reports, claim):
    for rank, failure in enumerate(uneven_reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
