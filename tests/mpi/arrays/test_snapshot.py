"""Snapshots of live jobs: what they hold, what may go wrong, and what is left after a crash."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from coarse.snapshots.files.restore import read_checkpoint
from tests.mpi.arrays.snapshot_claims import CLAIMS
from tests.support.claims import read_reports
from tests.support.launch import mpirun
from tests.support.layouts import parameters

HERE = Path(__file__).parent


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
    "two nodes": (5, 3, nodes(("worker", *PAIR), PAIR)),
    "both roles on two nodes": (3, 3, nodes(("both", "worker"), ("both",))),
}
"""Name -> ranks, workers, partition."""


@pytest.fixture(scope="module", params=parameters(LAYOUTS, set(LAYOUTS) - {"4:2"}))
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    num_ranks, num_workers, partition = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("snapshots")
    environ = {"COARSE_PARTITION": partition}
    if "\n" in partition:
        (folder / "partition.toml").write_text(partition)
        environ = {"COARSE_PARTITION": str(folder / "partition.toml")}
    completed = mpirun(
        num_ranks, HERE / "snapshot_claims.py", folder, folder, env=environ if num_ranks > 1 else None
    )
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.fixture(scope="module")
def first_checkpoint(tmp_path_factory):
    """The folder of a checkpoint of step 1 whose program has ended without waiting for it."""
    folder = tmp_path_factory.mktemp("first") / "last"
    completed = mpirun(4, HERE / "snapshot_story.py", "take", folder)
    assert completed.returncode == 0, completed.stderr
    return folder


@pytest.fixture
def checkpoint(first_checkpoint, tmp_path):
    """A copy of that folder, with nothing beside it."""
    return Path(shutil.copytree(first_checkpoint, tmp_path / "last"))


@pytest.mark.parametrize(("num_ranks", "num_workers"), [(1, 1), (4, 2), (8, 4)])
def test_any_number_of_workers_reads_what_two_wrote(checkpoint, num_ranks, num_workers):
    completed = mpirun(num_ranks, HERE / "snapshot_story.py", "read", checkpoint)
    assert completed.returncode == 0, completed.stderr
    said = [f"worker {rank} of {num_workers} read what 2 wrote" for rank in range(num_workers)]
    assert sorted(completed.stdout.splitlines()) == said


@pytest.mark.parametrize(
    "stage",
    [
        "last.tmp-*",
        "last.tmp-*/part-*.safetensors.tmp",
        "last.tmp-*/part-*.safetensors",
        "last.tmp-*/manifest.json*",
        ".last.replaced",
    ],
)
def test_a_checkpoint_is_whole_whenever_all_ranks_are_killed(checkpoint, stage):
    completed = mpirun(4, HERE / "snapshot_story.py", "kill", checkpoint, stage)
    assert completed.returncode != 0
    found = read_checkpoint(checkpoint)
    assert found.step in ((1,) if "part" in stage and not checkpoint.with_name("missed").exists() else (1, 2))
    assert len(found.tensors) == 24
    for number in range(24):
        values = found.tensors[f"layer{number}"].array
        np.testing.assert_array_equal(values, 1000 * found.step + number)


def test_a_full_disk_is_told_to_all_ranks_and_harms_no_older_checkpoint(checkpoint):
    completed = mpirun(4, HERE / "snapshot_story.py", "full", checkpoint)
    assert completed.returncode == 0, completed.stderr
    told = sorted(completed.stdout.splitlines())
    assert [line[:9] for line in told] == ["worker 0:", "worker 1:"]
    assert all("File too large" in line and "free space" in line for line in told)
    assert read_checkpoint(checkpoint).step == 1
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last"]


def test_who_shuts_down_waits_for_no_snapshot_that_another_has_not_taken(checkpoint):
    completed = mpirun(4, HERE / "snapshot_story.py", "alone", checkpoint)
    assert completed.returncode == 0, completed.stderr
    assert "rank 1 (MPI rank 1) has shut down without taking it" in completed.stdout
    assert read_checkpoint(checkpoint).step == 1


def test_a_device_that_dies_ends_the_snapshot_on_all_ranks(checkpoint):
    completed = mpirun(4, HERE / "snapshot_story.py", "dead", checkpoint, ulfm=True)
    told = sorted(completed.stdout.splitlines())
    assert [line[:9] for line in told] == ["worker 0:", "worker 1:"], completed.stderr
    assert all("memory device 1 (MPI rank 3) died" in line for line in told)
    assert read_checkpoint(checkpoint).step == 1
