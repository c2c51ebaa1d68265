"""Sharded training equals that of one process alone in every mode, and its state goes out and comes back."""

from pathlib import Path

import pytest

from tests.mpi.programs.sharding_equality import claims
from tests.mpi.sharding_job import reports_of


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of("sharding_equality.py", tmp_path_factory.mktemp("equality"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in claims(Path())])
def test_in_every_mode(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
