"""Tensors and models on GPUs, for which stand-ins stand here, live: the bits of the same on the CPU."""

import json
from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
LAYOUTS = {"devices on the GPU": ('memory = "cuda:0"\n', ""), "devices on the host": ("", 'policy = "devices"\n')}
"""What the table says first, and settings: without a policy, what is on the CPU would be summed by the workers too."""


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim on a layout."""
    folder = tmp_path_factory.mktemp("layout")
    memory, settings = LAYOUTS[request.param]
    (folder / "partition.toml").write_text(memory + partition_table(2, 1))
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "partition.toml"\n{settings}')
    environ = {
        "COARSE_CONFIG": str(folder / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"num_gpus": 1, "total_bytes": 1 << 30}),
    }
    completed = mpirun(3, HERE / "gpu_torch_claims.py", folder, env=environ, timeout_s=120, joins_first=True)
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, 2)


@pytest.mark.parametrize("claim", claims_of(HERE / "gpu_torch_claims.py"))
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"
