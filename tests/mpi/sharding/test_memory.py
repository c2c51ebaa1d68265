"""What sharded training takes of an accelerator's memory, live, by mode."""

from pathlib import Path

import pytest

from tests.mpi.sharding.job import reports_of
from tests.mpi.sharding.memory_claims import CLAIMS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of(HERE / "memory_claims.py", tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_two_nodes(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
