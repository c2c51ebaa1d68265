"""push and pull of numpy arrays, live, on several layouts of workers and memory devices."""

from pathlib import Path

import pytest

from coarse.protocol.units import GIB
from coarse.storage.room import available_bytes
from tests.mpi.arrays.array_claims import CLAIMS
from tests.support.claims import read_reports, require_held
from tests.support.launch import mpirun
from tests.support.layouts import Choice, choices, covering, parameters, partition_table

HERE = Path(__file__).parent
AXES = {
    "workers": (2, 3, 4),
    "devices": (1, 2, 3),
    "nodes": (1, 2),
    "roles": ("apart", "both"),
    "sums": ("coarse", "ring", "dense"),
    "shards": ("whole", "tiny"),
    "tensors": ("copied", "lent"),
}
SUMS = {"coarse": "", "ring": 'collective = "ring"\nnum_sync_groups = 3\n', "dense": 'mode = "dense"\n'}
SHARDS = {"whole": "", "tiny": '[routing]\npolicy = "fixed"\nthreshold_bytes = 1000\npartition_bytes = 8192\n'}
TENSORS = {"copied": "", "lent": "lend_from_bytes = 1\n"}
"""By default small tensors are copied, and here all are."""


def is_allowed(*, workers: int, devices: int, nodes: int, roles: str, sums: str, shards: str, tensors: str) -> bool:
    """Each node has a device; who is both is a worker; dense has one node and no shards."""
    return nodes <= devices and (roles == "apart" or devices <= workers) and (
        sums != "dense" or (nodes, shards) == (1, "whole")
    )  # fmt: skip


def named(choice: Choice) -> str:
    """A layout's name: what it has beside workers and devices, where that is not the usual."""
    parts = ("dense" * (choice["sums"] == "dense"), "ring" * (choice["sums"] == "ring"))
    parts += ("two nodes" * (choice["nodes"] == 2), "both roles" * (choice["roles"] == "both"))
    parts += ("tiny shards" * (choice["shards"] == "tiny"), "lent" * (choice["tensors"] == "lent"))
    return ", ".join([f"{choice['workers']}:{choice['devices']}", *filter(None, parts)])


EVERY = choices(AXES, is_allowed)
FEW = [choice for choice in EVERY if choice["workers"] < 4]
"""Four workers are in the full product alone: groups and snapshots have them in `make test`."""
ALONE = {"one process": 1, "1:1": 2}
"""Ranks of one worker, with a device in its process or beside it."""
LAYOUTS = {named(choice): choice for choice in EVERY}
IN_MAKE_TEST = {*ALONE, *(named(FEW[number]) for number in covering(FEW))}


@pytest.fixture(scope="module", params=parameters([*ALONE, *LAYOUTS], IN_MAKE_TEST))
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    folder = tmp_path_factory.mktemp("layout")
    num_ranks, num_workers, config = ALONE.get(request.param, 0), 1, ""
    if choice := LAYOUTS.get(request.param):
        num_workers, is_both = choice["workers"], choice["roles"] == "both"
        table = partition_table(num_workers, choice["devices"], num_nodes=choice["nodes"], is_both=is_both)
        (folder / "partition.toml").write_text(table)
        num_ranks = table.count("[[rank]]")
        config = 'partition = "partition.toml"\n' + SUMS[choice["sums"]] + TENSORS[choice["tensors"]]
        config += SHARDS[choice["shards"]]
    (folder / "config.toml").write_text("stall_timeout_s = 20\n" + config)
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(num_ranks, HERE / "array_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


LENDING = {
    "one node": ("2:2", 4, ""),
    "tiny shards": ("2:2", 4, SHARDS["tiny"]),
    "ring": ("2:1", 3, SUMS["ring"]),
    "two nodes": (partition_table(2, 2, num_nodes=2, is_both=False), 4, SHARDS["tiny"]),
    "both roles": (partition_table(2, 2, num_nodes=1, is_both=True), 2, ""),
}


@pytest.mark.parametrize("layout", parameters(LENDING, {"one node", "two nodes", "both roles"}))
def test_tensors_are_lent_and_given_back(tmp_path, layout):
    partition, num_ranks, config = LENDING[layout]
    if partition.startswith("[["):
        (tmp_path / "partition.toml").write_text(partition)
        partition = "partition.toml"
    (tmp_path / "config.toml").write_text(
        f'stall_timeout_s = 20\nlend_from_bytes = 1\npartition = "{partition}"\n{config}'
    )
    environ = {"COARSE_CONFIG": str(tmp_path / "config.toml")}
    completed = mpirun(num_ranks, HERE / "lending_claims.py", tmp_path, env=environ)
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(tmp_path, 2)
    require_held(reports, reports)
    assert (tmp_path / "summed").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "num_ranks"), [("in_device_memory", 3), pytest.param("copied", 1, marks=pytest.mark.test_all)]
)
def test_a_tensor_may_be_larger_than_2_gib(way, num_ranks):
    if available_bytes() < 8 * GIB:  # now, not when tests were collected
        pytest.skip("needs 8 GiB of memory")
    completed = mpirun(num_ranks, HERE / "large_arrays.py", way, timeout_s=120)
    assert completed.returncode == 0, completed.stderr
