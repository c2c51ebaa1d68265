"""What the sharding modes say of three workers of whom two share a node."""

from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def uneven_reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    folder = tmp_path_factory.mktemp("uneven")
    (folder / "partition.toml").write_text(partition_table(3, 3, num_nodes=2, is_both=True))
    environ = {"COARSE_PARTITION": str(folder / "partition.toml")}
    completed = mpirun(3, HERE / "uneven_claims.py", folder, env=environ, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 3)


@pytest.mark.parametrize("claim", claims_of(HERE / "uneven_claims.py"))
def test_on_uneven_nodes(uneven_reports, claim):
    for rank, failure in enumerate(uneven_reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
