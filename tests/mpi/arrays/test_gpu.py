"""push and pull where memory devices, or workers, are on GPUs, for which stand-ins stand here (tests/support)."""

import json
from pathlib import Path

import pytest

from tests.mpi.arrays.array_claims import CLAIMS as ARRAY_CLAIMS
from tests.mpi.arrays.gpu_claims import CLAIMS
from tests.support.claims import read_reports
from tests.support.launch import mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
TINY = '[routing]\npolicy = "fixed"\nthreshold_bytes = 1000\npartition_bytes = 8192\n'
RINGS = f'collective = "ring"\nnum_sync_groups = 2\n{TINY}'
LAYOUTS = {
    "devices on one GPU": ((2, 2, 1, False), {"num_gpus": 1}, ("cuda:0",), ""),
    "GPUs that reach one another": ((3, 2, 1, False), {"num_gpus": 2}, ("cuda:0", "cuda:1"), TINY),
    "GPUs without peer access": ((2, 2, 1, False), {"num_gpus": 2, "strangers": [[0, 1]]}, ("cuda:0", "cuda:1"), TINY),
    "rings of GPUs": ((2, 2, 1, False), {"num_gpus": 2}, ("cuda:0", "cuda:1"), RINGS),
    "two nodes": ((2, 2, 2, False), {"num_gpus": 1}, ("cuda:0",), TINY),
    "both roles": ((2, 2, 1, True), {"num_gpus": 1}, ("cuda:0",), ""),
    "devices on the host": ((2, 2, 1, False), {"num_gpus": 2}, (), TINY),
    "devices on the host that may not be pinned": ((2, 1, 1, False), {"num_gpus": 1, "most_pinned_bytes": 0}, (), ""),
}
"""(workers, devices, nodes, both roles), arguments of the stand-in, the devices' memory in turn, and settings."""


def start(folder: Path, layout: str, program: str):
    """The job of a layout, ended."""
    (num_workers, num_devices, num_nodes, is_both), stand_in, memories, settings = LAYOUTS[layout]
    table = partition_table(num_workers, num_devices, num_nodes=num_nodes, is_both=is_both)
    entries = table.split("[[rank]]")
    number = 0
    for place, entry in enumerate(entries):
        if memories and ("memory_device" in entry or "both" in entry):
            entries[place] = f'{entry.rstrip()}\nmemory = "{memories[number % len(memories)]}"\n'
            number += 1
    (folder / "partition.toml").write_text("[[rank]]".join(entries))
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "partition.toml"\n{settings}')
    environ = {
        "COARSE_CONFIG": str(folder / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"total_bytes": 1 << 30, **stand_in}),
    }
    return mpirun(table.count("[[rank]]"), HERE / program, folder, env=environ, timeout_s=120)


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory):
    """What each worker found of each claim on a layout."""
    folder = tmp_path_factory.mktemp("layout")
    completed = start(folder, request.param, "gpu_claims.py")
    assert completed.returncode == 0, completed.stderr
    is_staged = request.param == "GPUs without peer access"
    assert ("has no peer access" in completed.stderr) is is_staged
    assert ("not pinned hold up backward" in completed.stderr) is request.param.endswith("may not be pinned")
    return read_reports(folder, LAYOUTS[request.param][0][0])


@pytest.mark.parametrize("claim", [claim.__name__ for claim in CLAIMS])
def test_on_every_layout(reports, claim):
    for rank, failure in enumerate(reports[claim]):
        assert not failure, f"worker {rank}:\n{failure}"


WRITTEN_BY_NUMPY = {
    "first_uses_in_a_row_keep_all_rules",
    "a_device_array_is_combined_in_place",
    "an_array_that_only_begins_in_device_memory_is_copied",
    "a_forgotten_name_gives_its_memory_back_and_may_be_used_anew",
}
"""Claims of device arrays that numpy reads and writes, as it cannot on a GPU."""


def test_arrays_on_the_host_keep_their_promises_on_gpus(tmp_path):
    completed = start(tmp_path, "GPUs without peer access", "array_claims.py")
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(tmp_path, 2)
    assert reports.keys() == {claim.__name__ for claim in ARRAY_CLAIMS}
    failed = {name: failures for name, failures in reports.items() if any(failures)}
    assert failed.keys() <= WRITTEN_BY_NUMPY, failed
