"""Whatever happens between and within steps, sharded training stays equal to that of one process alone."""

import pytest

from tests.mpi.programs.sharding_situations import claims, mutated
from tests.mpi.sharding_job import reports_of


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job."""
    return reports_of("sharding_situations.py", tmp_path_factory.mktemp("situations"))


@pytest.mark.parametrize("claim", [claim.__name__ for claim in claims()])
def test_equals_one_process(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.parametrize("claim", [claim.__name__ for claim in mutated()])
def test_a_broken_rule_is_seen(reports, claim):
    assert all("AssertionError: further than" in failure for failure in reports[claim])
