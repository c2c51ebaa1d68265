"""Device memory where the partition table puts it: the kernel is asked where each page is."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from coarse.errors import ConfigError
from coarse.protocol.place import NumaNode
from coarse.storage.numa import create_on_node
from tests.mpi.arrays.array_claims import CLAIMS
from tests.support.claims import IN_TIME_S, read_reports
from tests.support.dax_tree import make_dax_tree
from tests.support.launch import REPOSITORY, mpirun

HERE = Path(__file__).parent
SUPPORT = REPOSITORY / "tests" / "support"
MIB = 1 << 20
MPOL_DEFAULT, MPOL_BIND = 0, 2


def table(folder: Path, *memories: str) -> dict[str, str]:
    """The environment of two workers and one memory device in each place ("" for none)."""
    text = "".join(f'[[rank]]\nrank = {rank}\nrole = "worker"\n' for rank in range(2))
    for rank, memory in enumerate(memories, start=2):
        text += f'[[rank]]\nrank = {rank}\nrole = "memory_device"\n' + (f'memory = "{memory}"\n' if memory else "")
    (folder / "partition.toml").write_text(text)
    return {"COARSE_PARTITION": str(folder / "partition.toml")}


def table_of_one_file(folder: Path, path: Path, *ranges: tuple[int, int]) -> dict[str, str]:
    """The environment of two workers and a memory device for each (offset, bytes) of a file."""
    text = "".join(f'[[rank]]\nrank = {rank}\nrole = "worker"\n' for rank in range(2))
    for rank, (offset, nbytes) in enumerate(ranges, start=2):
        text += f'[[rank]]\nrank = {rank}\nrole = "memory_device"\nmemory = "file:{path}"\n'
        text += f"memory_offset_bytes = {offset}\nmemory_bytes = {nbytes}\n"
    (folder / "partition.toml").write_text(text)
    return {"COARSE_PARTITION": str(folder / "partition.toml")}


def asked(folder: Path, memory: str) -> dict:
    """What the kernel says of a device's memory in a job whose device has it there."""
    completed = mpirun(3, HERE / "placed_memory.py", folder / "found.json", env=table(folder, memory))
    assert completed.returncode == 0, completed.stderr
    return json.loads((folder / "found.json").read_text())


def test_all_pages_of_a_bound_device_come_from_its_node_in_every_process(tmp_path):
    try:
        os.close(create_on_node(0, "coarse-test", MIB, 1).descriptor)
    except ConfigError as refused:
        pytest.skip(str(refused))
    found = asked(tmp_path, str(NumaNode(0)))
    assert found["policy"] == [MPOL_BIND, [0]]
    assert len(found["nodes"]) == 4 * MIB // 4096 + 1  # from the middle of a page to the middle of one
    assert set(found["nodes"]) == {0}
    assert len(found["maps"]) == 3  # two workers and the device
    for lines in found["maps"].values():
        assert [line.split()[1] for line in lines] == ["bind:0"]
    in_use = [field for lines in found["maps"].values() for field in lines[0].split() if field.startswith("N")]
    assert in_use
    assert all(field.startswith("N0=") for field in in_use)


def test_the_kernel_tells_a_device_that_is_bound_from_one_that_is_not(tmp_path):
    found = asked(tmp_path, "")
    assert found["policy"] == [MPOL_DEFAULT, []]
    assert {line.split()[1] for lines in found["maps"].values() for line in lines} == {"default"}


@pytest.mark.parametrize("base", ["disk", "tmpfs"])
def test_a_device_in_a_folder_is_a_file_there_that_leaves_nothing(tmp_path, base):
    folder = tmp_path / "memory" if base == "disk" else Path("/dev/shm")
    folder.mkdir(exist_ok=True)
    found = asked(tmp_path, f"folder:{folder}")
    assert found["file"].startswith(f"{folder}/")
    assert not Path(found["file"]).exists()
    assert len(found["maps"]) == 3


def test_no_claim_needs_memory_that_was_zero_at_first(tmp_path):
    """On a devdax device, which keeps what was written, and which stands here in a file full of ones."""
    make_dax_tree(tmp_path / "sys", 256 * MIB, 2 * MIB)
    (tmp_path / "dax0.0").write_bytes(b"\xff" * (256 * MIB))
    completed = mpirun(3, HERE / "dax_claims.py", tmp_path, env=table(tmp_path, f"dax:{tmp_path}/dax0.0"))
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(tmp_path, 2)
    assert reports.keys() == {claim.__name__ for claim in CLAIMS}
    assert not [failure for failures in reports.values() for failure in failures if failure]


def test_two_devices_share_a_file_that_was_there_and_leave_it_there(tmp_path):
    """As on famfs; the file is full of ones, and between the devices lie bytes that nobody has."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name) / "pool"
        path.write_bytes(b"\xff" * (258 * MIB))
        before = path.stat()
        environment = table_of_one_file(tmp_path, path, (0, 128 * MIB), (130 * MIB, 128 * MIB))
        completed = mpirun(4, HERE / "array_claims.py", tmp_path, env=environment)
        assert completed.returncode == 0, completed.stderr
        reports = read_reports(tmp_path, 2)
        assert reports.keys() == {claim.__name__ for claim in CLAIMS}
        assert not [failure for failures in reports.values() for failure in failures if failure]
        after = path.stat()
        assert (after.st_ino, after.st_size, after.st_nlink) == (before.st_ino, 258 * MIB, 1)
        seen = np.memmap(path, np.uint8, "r")
        assert (seen[128 * MIB : 130 * MIB] == 0xFF).all()
        assert (seen[: 128 * MIB] != 0xFF).any()
        assert (seen[130 * MIB :] != 0xFF).any()


def test_a_device_in_a_file_of_a_disk_is_mapped_by_all_and_keeps_its_name(tmp_path):
    path = tmp_path / "pool"
    path.write_bytes(b"\xff" * (64 * MIB))
    found = asked(tmp_path, f"file:{path}")
    assert found["file"] == str(path)
    assert len(found["maps"]) == 3
    assert path.stat().st_size == 64 * MIB


REFUSALS = {
    "absent node": (
        ("", "numa:977"),
        "ConfigError",
        ["partition.toml:13: memory of rank 3 is 'numa:977': this machine has no NUMA node 977", "name one of these"],
    ),
    "no devdax": (
        ("", "dax:/dev/null"),
        "ConfigError",
        ["partition.toml:13: memory of rank 3 is 'dax:/dev/null': this is no devdax device", "dax devices here"],
    ),
    "devdax twice": (
        ("dax:/dev/dax0.0", "dax:/dev/dax0.0"),
        "ConfigError",
        ["partition.toml:14: memory of rank 3 is 'dax:/dev/dax0.0', which rank 2 on the same host", "name another"],
    ),
    "absent folder": (
        ("", "folder:/absent"),
        "ConfigError",
        ["partition.toml:13: memory of rank 3 is 'folder:/absent': there is no such folder; make it"],
    ),
    "too large": (
        ("folder:/dev/shm", "folder:/dev/shm"),
        "CapacityError",
        ["partition.toml:10: memory of rank 2 is", f"2 memory devices of {1 << 59} bytes", "tmpfs at /dev/shm has"],
    ),
    "existing file twice": (
        ("file:/pool", "file:/pool"),
        "ConfigError",
        ["partition.toml:14: memory of rank 3 is 'file:/pool', which rank 2 on the same host", "memory_offset_bytes"],
    ),
    "absent file": (
        ("", "file:/absent/pool"),
        "ConfigError",
        ["partition.toml:13: memory of rank 3 is 'file:/absent/pool': there is no such file", "famfs creat"],
    ),
    "short file": (
        (f"file:{__file__}", ""),
        "CapacityError",
        ["partition.toml:10: memory of rank 2 is", f"{1 << 59} bytes are wanted but the file has", "device_capacity"],
    ),
    "unknown": (("", "cxl:2"), "ConfigError", ["partition.toml:13: memory must be 'numa:2'", "got 'cxl:2'"]),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """By the name of a refusal, the error of every rank: one job that tries all starts."""
    folder = tmp_path_factory.mktemp("refusals")
    for name, (memories, kind, _) in REFUSALS.items():
        (folder / name).mkdir()
        table(folder / name, *memories)
        capacity = 1 << 59 if kind == "CapacityError" else MIB
        config = f'partition = "{name}/partition.toml"\ndevice_capacity_bytes = {capacity}\n'
        (folder / f"{name}.config").write_text(config)
    completed = mpirun(4, SUPPORT / "refused_start.py", folder)
    assert completed.returncode == 0, completed.stderr
    return {name: [json.loads(path.read_text()) for path in (folder / name).glob("rank*.json")] for name in REFUSALS}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_place_that_cannot_be_is_refused_on_every_rank_with_file_line_and_rank(refusals, name):
    _, kind, words = REFUSALS[name]
    assert len(refusals[name]) == 4
    for report in refusals[name]:
        assert report["kind"] == kind
        assert report["waited_s"] < IN_TIME_S
        missing = [word for word in words if word not in report["text"]]
        assert not missing, report["text"]
