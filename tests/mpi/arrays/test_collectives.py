"""Groups of workers, live, on one node and on two: their collectives, their bytes, and their ends."""

import json
from pathlib import Path

import pytest

from tests.mpi.arrays.collective_claims import CLAIMS
from tests.support.claims import IN_TIME_S, read_reports
from tests.support.launch import mpirun, running

HERE = Path(__file__).parent
TWO_NODES = "".join(
    f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "node{rank // 3}"\n'
    for rank, role in enumerate(("worker", "worker", "memory_device") * 2)
)
LAYOUTS = {"one node": "4:2", "two nodes": TWO_NODES}


def environ_of(layout, folder):
    """The environment that chooses a layout of 4 workers and 2 devices."""
    partition = LAYOUTS[layout]
    if partition.startswith("[["):
        (folder / "partition.toml").write_text(partition)
        partition = str(folder / "partition.toml")
    return {"COARSE_PARTITION": partition}


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    folder = tmp_path_factory.mktemp("collectives")
    completed = mpirun(6, HERE / "collective_claims.py", folder, env=environ_of(request.param, folder), timeout_s=120)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 4)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


@pytest.mark.parametrize("collective", ["hierarchical", "ring"])
def test_under_ulfm_every_survivor_of_a_collective_names_the_worker_that_died(tmp_path, collective):
    environ = environ_of("two nodes", tmp_path)
    mpirun(6, HERE / "ended_in_collective.py", tmp_path, 2, collective, env=environ, ulfm=True, timeout_s=60)
    for rank in (0, 1, 3):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["kind"] == "DeadRankError", found["text"]
        assert found["dead_rank"] == 3
        assert "worker 2 (MPI rank 3) died" in found["text"]
        assert found["waited_s"] < IN_TIME_S
    assert not running(int(path.read_text()) for path in tmp_path.glob("pid*"))
