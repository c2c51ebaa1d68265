"""Whatever happens between and within steps, sharded training stays equal to that of one process alone."""

from pathlib import Path

import pytest

from tests.mpi.sharding.job import reports_of
from tests.mpi.sharding.situation_claims import claims, mutated

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of(HERE / "situation_claims.py", tmp_path_factory.mktemp("situations"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in claims()])
def test_equals_one_process(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.parametrize("claim", [claim.__name__ for claim in mutated()])
def test_a_broken_rule_is_seen(reports, claim):
    assert all("AssertionError: further than" in failure for failure in reports[claim])
