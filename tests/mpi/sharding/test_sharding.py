"""Sharded training of four workers on two nodes, in one job: it equals that of one process alone in every mode and
situation, and moves, holds and refuses what it should."""

from pathlib import Path

import pytest

from tests.support.claims import read_reports, require_held, takes_all
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
NUM_WORKERS = 4
GROUPS = {"two nodes": 73} | (
    {"modes": 46, "situations": 75, "broken rules": 8}
    if takes_all()
    else {"modes": 26, "situations": 43, "broken rules": 4}
)
"""Groups of claims, and how many each has at least."""
STEPS, ALL_STEPS = (0, 2), (0, 9, 19)
"""Where gradients are compared in `make test` and in `make test-all`; the last ends a training."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By group and claim what each worker found."""
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "partition.toml").write_text(partition_table(NUM_WORKERS, NUM_WORKERS, num_nodes=2, is_both=True))
    (folder / "config.toml").write_text('stall_timeout_s = 20\npartition = "partition.toml"\n')
    steps = ALL_STEPS if takes_all() else STEPS
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(
        NUM_WORKERS, HERE / "sharding_claims.py", folder, *steps, env=environ, timeout_s=600, preloaded="torch"
    )
    assert completed.returncode == 0, completed.stderr
    return {name: read_reports(folder / name, NUM_WORKERS) for name in GROUPS}


@pytest.mark.parametrize("group", ["modes", "situations", "two nodes"])
def test_every_claim_holds_on_every_worker(reports, group):
    assert len(reports[group]) >= GROUPS[group]
    require_held(reports[group], reports[group])


def test_every_broken_rule_is_seen(reports):
    assert len(reports["broken rules"]) >= GROUPS["broken rules"]
    unseen = {
        name: failures
        for name, failures in reports["broken rules"].items()
        if not all("AssertionError: further than" in failure for failure in failures)
    }
    assert not unseen
