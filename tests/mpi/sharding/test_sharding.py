"""Sharded training of four workers on two nodes, in one job: it equals that of one process alone in every mode and
situation, and moves, holds and refuses what it should."""

from pathlib import Path

import pytest

from tests.mpi.sharding import equality_claims, memory_claims, mode_claims, situation_claims
from tests.support.claims import Claim, read_reports
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
NUM_WORKERS = 4
STEPS, ALL_STEPS = (0, 3, 7), (0, 9, 19)
"""Where gradients are compared in `make test` and in `make test-all`; the last ends a training."""


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """What each worker found of each claim."""
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "partition.toml").write_text(partition_table(NUM_WORKERS, NUM_WORKERS, num_nodes=2, is_both=True))
    (folder / "config.toml").write_text('stall_timeout_s = 20\npartition = "partition.toml"\n')
    steps = ALL_STEPS if request.config.getoption("--test-all") else STEPS
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(NUM_WORKERS, HERE / "sharding_claims.py", folder, *steps, env=environ, timeout_s=600)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, NUM_WORKERS)


def names(claims: list[Claim]) -> list[str]:
    return [claim.__name__ for claim in claims]


def require_held(failures: list[str]) -> None:
    for rank, failure in enumerate(failures):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.parametrize("claim", names([*equality_claims.claims(Path())]))
def test_in_every_mode(reports, claim):
    require_held(reports[claim])


@pytest.mark.parametrize("claim", names([*situation_claims.claims()]))
def test_equals_one_process(reports, claim):
    require_held(reports[claim])


@pytest.mark.parametrize("claim", names([*situation_claims.mutated()]))
def test_a_broken_rule_is_seen(reports, claim):
    assert all("AssertionError: further than" in failure for failure in reports[claim])


@pytest.mark.parametrize("claim", names([*mode_claims.claims(Path()), *memory_claims.CLAIMS]))
def test_on_two_nodes(reports, claim):
    require_held(reports[claim])
