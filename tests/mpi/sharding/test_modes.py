"""Bytes between nodes, traces and refusals of the sharding modes, on four workers of two nodes."""

from pathlib import Path

import pytest

from tests.mpi.sharding import uneven_claims
from tests.mpi.sharding.job import reports_of
from tests.mpi.sharding.mode_claims import claims
from tests.support.claims import read_reports
from tests.support.launch import mpirun

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of(HERE / "mode_claims.py", tmp_path_factory.mktemp("modes"))


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
    completed = mpirun(3, HERE / "uneven_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 3)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in uneven_claims.CLAIMS])
def test_on_uneven_nodes(uneven_reports, claim):
    for rank, failure in enumerate(uneven_reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
