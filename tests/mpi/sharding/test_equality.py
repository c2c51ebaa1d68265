"""Sharded training equals that of one process alone in every mode, and its state goes out and comes back."""

from pathlib import Path

import pytest

from tests.mpi.sharding.equality_claims import claims
from tests.mpi.sharding.job import reports_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of(HERE / "equality_claims.py", tmp_path_factory.mktemp("equality"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in claims(Path())])
def test_in_every_mode(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
