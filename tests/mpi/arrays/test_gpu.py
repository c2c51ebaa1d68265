"""push and pull where memory devices, or workers, are on GPUs, for which stand-ins stand here (tests/support)."""

import json
from pathlib import Path

import pytest

from tests.mpi.arrays.array_claims import CLAIMS as ARRAY_CLAIMS
from tests.mpi.arrays.gpu_claims import CLAIMS
from tests.support.claims import IN_TIME_S, read_reports
from tests.support.launch import REPOSITORY, mpirun
from tests.support.layouts import parameters, partition_table

HERE = Path(__file__).parent
SUPPORT = REPOSITORY / "tests" / "support"
TINY = '[routing]\npolicy = "fixed"\nthreshold_bytes = 1000\npartition_bytes = 16384\n'
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
IN_MAKE_TEST = {"GPUs without peer access", "rings of GPUs", "two nodes", "devices on the host that may not be pinned"}


def start(folder: Path, layout: str, program: str, *given: object, more: str = "", ulfm: bool = False):
    """The job of a layout, with `more` settings, ended; its program is `given` the folder, and this."""
    (num_workers, num_devices, num_nodes, is_both), stand_in, memories, settings = LAYOUTS[layout]
    table = partition_table(num_workers, num_devices, num_nodes=num_nodes, is_both=is_both)
    entries = table.split("[[rank]]")
    number = 0
    for place, entry in enumerate(entries):
        if memories and ("memory_device" in entry or "both" in entry):
            entries[place] = f'{entry.rstrip()}\nmemory = "{memories[number % len(memories)]}"\n'
            number += 1
    (folder / "partition.toml").write_text("[[rank]]".join(entries))
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "partition.toml"\n{more}{settings}')
    environ = {
        "COARSE_CONFIG": str(folder / "config.toml"),
        "COARSE_TEST_GPUS": json.dumps({"total_bytes": 1 << 30, **stand_in}),
    }
    return mpirun(table.count("[[rank]]"), HERE / program, folder, *given, env=environ, timeout_s=120, ulfm=ulfm)


@pytest.fixture(scope="module", params=parameters(LAYOUTS, IN_MAKE_TEST))
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


# --- bad input


REFUSALS = {
    "a GPU that is not there": (["cuda:0", "cuda:7"], 1 << 20, "ConfigError", "rank 3 is 'cuda:7': this process sees"),
    "one that others may not use": (["cuda:1", "cuda:1"], 1 << 20, "ConfigError", "cannot be a memory device's: it is"),
    "in part the host's memory": (["cuda:0", ""], 1 << 20, "ConfigError", "put all memory devices of a node on GPUs"),
    "more than a GPU has": (["cuda:0", "cuda:0"], 1 << 50, "CapacityError", "bytes are wanted of GPU 0, which has"),
}
"""The memories of ranks 2 and 3, device_capacity_bytes, the error, and what it says."""


def write_refusal(folder: Path, name: str, memories: list[str], capacity_bytes: int) -> None:
    entries = [f'[[rank]]\nrank = {rank}\nrole = "worker"\n' for rank in range(2)]
    for rank, memory in enumerate(memories, start=2):
        entry = f'[[rank]]\nrank = {rank}\nrole = "memory_device"\n'
        entries.append(entry + (f'memory = "{memory}"\n' if memory else ""))
    (folder / name).mkdir()
    (folder / name / "partition.toml").write_text("".join(entries))
    config = f'partition = "{name}/partition.toml"\ndevice_capacity_bytes = {capacity_bytes}\n'
    (folder / f"{name}.config").write_text(config)


def reports_of(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """A folder with every rank's error of each start, of one job that tries them all."""
    folder = tmp_path_factory.mktemp("refusals")
    for name, (memories, capacity_bytes, _, _) in REFUSALS.items():
        write_refusal(folder, name, memories, capacity_bytes)
    stand_in = json.dumps({"num_gpus": 2, "lacks": ["", "it is in exclusive mode"]})
    completed = mpirun(4, SUPPORT / "refused_start.py", folder, env={"COARSE_TEST_GPUS": stand_in})
    assert completed.returncode == 0, completed.stderr
    return folder


@pytest.mark.parametrize("name", REFUSALS)
def test_a_gpu_that_cannot_be_a_device_s_is_refused_on_every_rank(refused, name):
    _, _, kind, words = REFUSALS[name]
    reports = reports_of(refused / name)
    assert len(reports) == 4
    for report in reports:
        assert report["kind"] == kind
        assert words in report["text"], report["text"]
        assert "partition.toml:" in report["text"]
        assert report["waited_s"] < IN_TIME_S


def test_without_cuda_every_rank_says_what_to_install(tmp_path):
    write_refusal(tmp_path, "no CUDA", ["cuda:0", "cuda:0"], 1 << 20)
    completed = mpirun(4, SUPPORT / "refused_start.py", tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert completed.returncode == 0, completed.stderr
    reports = reports_of(tmp_path / "no CUDA")
    assert len(reports) == 4
    for report in reports:
        assert report["kind"] == "ConfigError"
        assert "memory of rank 2 is 'cuda:0': " in report["text"]
        assert "coarse-cxl[cuda]" in report["text"] or "CUDA finds no GPU here" in report["text"]


def test_a_worker_that_does_not_see_a_device_s_gpu_ends_the_start_of_all(tmp_path):
    (tmp_path / "partition.toml").write_text('memory = "cuda:0"\n' + partition_table(2, 1))
    completed = mpirun(
        3, HERE / "blind_worker.py", tmp_path, env={"COARSE_PARTITION": str(tmp_path / "partition.toml")}
    )
    assert completed.returncode == 0, completed.stderr
    reports = reports_of(tmp_path)
    assert len(reports) == 3
    for report in reports:
        assert report["kind"] == "ConfigError"
        assert "memory device 0 is on the GPU 0000:00:00.0, which this process does not see" in report["text"]
        assert "CUDA_VISIBLE_DEVICES" in report["text"]
        assert report["waited_s"] < IN_TIME_S


def test_a_tensor_that_a_gpu_has_no_room_for_is_a_capacity_error_on_every_worker(tmp_path):
    completed = start(tmp_path, "devices on one GPU", "full_gpu.py", more=f"device_capacity_bytes = {32 << 20}\n")
    assert completed.returncode == 0, completed.stderr
    for report in reports_of(tmp_path):
        assert report["kind"] == "CapacityError"
        assert "'large' needs 41943040 bytes" in report["text"]
        assert report["waited_s"] < IN_TIME_S
    assert len(reports_of(tmp_path)) == 2


def test_the_death_of_a_device_whose_memory_all_have_mapped_is_told_in_time(tmp_path):
    start(tmp_path, "devices on one GPU", "killed_gpu_device.py", ulfm=True)
    reports = reports_of(tmp_path)
    assert len(reports) == 2
    for report in reports:
        assert report["kind"] == "DeadRankError"
        assert report["dead_rank"] == 3
        assert report["waited_s"] < IN_TIME_S


@pytest.mark.parametrize("layout", ["devices on one GPU", "devices on the host"])
def test_the_death_of_a_worker_on_a_gpu_is_told_in_time(tmp_path, layout):
    start(tmp_path, layout, "killed_gpu_device.py", 1, ulfm=True)
    (report,) = reports_of(tmp_path)
    assert report["kind"] == "DeadRankError"
    assert report["dead_rank"] == 1
    assert report["waited_s"] < IN_TIME_S
