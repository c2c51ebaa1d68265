"""The interface on torch tensors, live, on several layouts of workers and memory devices."""

import pytest

from tests.mpi.claims import read_reports
from tests.mpi.launch import mpirun
from tests.mpi.programs.torch_tensor_claims import CLAIMS

LAYOUTS = {"1:1": (1, ""), "2:2": (2, ""), "3:1": (3, ""), "2:2 in a ring": (2, 'collective = "ring"\n')}
"""Workers, and the rest of the configuration."""


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim, in one job per layout."""
    num_workers, config = LAYOUTS[request.param]
    partition = request.param.partition(" ")[0]
    folder = tmp_path_factory.mktemp("layout")
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "{partition}"\n{config}')
    num_ranks = sum(map(int, partition.split(":")))
    environ = {"COARSE_CONFIG": str(folder / "config.toml")}
    completed = mpirun(num_ranks, "torch_tensor_claims.py", folder, env=environ)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, num_workers)


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
