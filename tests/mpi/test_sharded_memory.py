"""What sharded training takes of an accelerator's memory, live, by mode."""

import pytest

from tests.mpi.programs.sharded_memory import CLAIMS
from tests.mpi.sharding_job import reports_of


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of("sharded_memory.py", tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_two_nodes(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
