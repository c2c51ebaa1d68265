"""Snapshots of live jobs: what they hold, what may go wrong, and what is left after a crash."""

import json
from pathlib import Path

import pytest

from coarse.storage.restore import read_checkpoint
from tests.mpi.claims import read_reports
from tests.mpi.launch import mpirun
from tests.mpi.programs.snapshot_claims import CLAIMS


def nodes(*roles_by_node: tuple[str, ...]) -> str:
    """A partition table that splits this host: for each node the roles of its ranks."""
    ranks = [(role, number) for number, roles in enumerate(roles_by_node) for role in roles]
    return "".join(
        f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{number}"\n'
        for rank, (role, number) in enumerate(ranks)
    )


PAIR = ("worker", "memory_device")
LAYOUTS = {
    "one process": (1, 1, "1:1"),
    "2:2": (4, 2, "2:2"),
    "4:2": (6, 4, "4:2"),
    "1:2": (3, 1, "1:2"),
    "two nodes": (5, 3, nodes(("worker", *PAIR), PAIR)),
    "both roles on two nodes": (3, 3, nodes(("both", "worker"), ("both",))),
}
"""Name -> ranks, workers, partition."""


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    num_ranks, num_workers, partition = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("snapshots")
    environ = {"COARSE_PARTITION": partition}
    if "\n" in partition:
        (folder / "partition.toml").write_text(partition)
        environ = {"COARSE_PARTITION": str(folder / "partition.toml")}
    completed = mpirun(
        num_ranks, "snapshot_claims.py", folder, folder, env=environ if num_ranks > 1 else None
    )
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
