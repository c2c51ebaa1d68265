"""Memory in files without a name, on the file systems that this machine has."""

import os
import tempfile

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.storage import folder as memory_folder
from coarse.storage import region as memory
from coarse.storage.folder import create_in_folder, file_system_type
from coarse.storage.region import DeviceMemory

MIB = 1 << 20


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request, tmp_path):
    """A folder of the file system of pytest, and one of a tmpfs; nobody else writes to either."""
    if request.param == "disk":
        yield str(tmp_path)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield made


def test_a_file_is_sparse_zero_and_never_has_a_name(folder):
    before = os.listdir(folder)
    file = create_in_folder(folder, 4 * MIB + 1, 1)
    assert os.listdir(folder) == before
    assert file.capacity_bytes == 4 * MIB + file.source.page_bytes
    assert os.fstat(file.descriptor).st_blocks == 0
    assert os.fstat(file.descriptor).st_nlink == 0
    device = DeviceMemory(file.descriptor, file.capacity_bytes, file.source)
    assert device.reserve(MIB, MIB) == ""
    assert os.fstat(file.descriptor).st_blocks * 512 >= MIB
    assert not device.view(0, 4 * MIB).any()
    device.close()


def test_without_a_wanted_capacity_a_device_may_grow_to_what_is_left(folder):
    file = create_in_folder(folder, None, 1)
    assert 0 < file.capacity_bytes <= file.source.room_bytes() + 64 * MIB
    assert os.fstat(file.descriptor).st_size == file.capacity_bytes
    os.close(file.descriptor)


def test_more_than_the_file_system_has_left_is_refused_with_its_type(tmp_path):
    kind = file_system_type(str(tmp_path))
    with pytest.raises(CapacityError, match=rf"^2 memory devices of {1 << 59} bytes .*: {kind} at {tmp_path} has"):
        create_in_folder(str(tmp_path), 1 << 59, 2)


def test_a_tmpfs_has_no_more_room_than_the_machine(monkeypatch):
    assert file_system_type("/dev/shm") == "tmpfs"
    file = create_in_folder("/dev/shm", MIB, 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: memory._HEADROOM_BYTES + 4096)
    assert file.source.room_bytes() == 4096
    os.close(file.descriptor)


def test_a_file_system_that_states_no_size_is_limited_by_what_the_kernel_gives(tmp_path, monkeypatch):
    status = os.statvfs(tmp_path)
    unlimited = os.statvfs_result((2 * MIB, 2 * MIB, 0, 0, 0, *status[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda _: unlimited)
    monkeypatch.setattr(memory_folder, "total_bytes", lambda: 5 * MIB)
    file = create_in_folder(str(tmp_path), None, 1)
    assert file.capacity_bytes == 6 * MIB  # in whole pages of that file system
    os.close(file.descriptor)


def test_an_absent_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(ConfigError, match="no such folder; make it"):
            create_in_folder(str(tmp_path / name), MIB, 1)


def test_a_file_outlives_its_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    file = create_in_folder(str(tmp_path / "folder"), MIB, 1)
    (tmp_path / "folder").rmdir()
    device = DeviceMemory(file.descriptor, file.capacity_bytes, file.source)
    assert device.reserve(0, MIB) == ""
    device.close()


def test_a_length_that_the_file_system_refuses_is_told_and_nothing_is_left_open(tmp_path, monkeypatch):
    def refuse(descriptor: int, nbytes: int) -> None:
        raise OSError(27, "File too large")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(ConfigError, match=rf"holds no file of {MIB} bytes \(File too large\); set device_"):
        create_in_folder(str(tmp_path), MIB, 1)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_takes_no_file_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"no file can be made there \(.*\); let the job's user write"):
        create_in_folder("/proc", MIB, 1)


@pytest.mark.parametrize(
    ("kind", "options", "is_behind"),
    [
        ("famfs", "rw", True), ("ext4", "rw,dax=always", True), ("xfs", "rw,dax", True),
        ("ext4", "rw,dax=never", False), ("tmpfs", "rw", False),
    ],
)  # fmt: skip
def test_files_of_memory_behind_caches_are_known_by_their_mount(tmp_path, monkeypatch, kind, options, is_behind):
    device = os.stat(tmp_path).st_dev
    mark = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"20 1 {mark} / {tmp_path} rw,noatime shared:1 - {kind} /dev/pmem0 {options}\n")
    monkeypatch.setattr(memory_folder, "_MOUNTS", mounts)
    assert memory_folder.is_memory_behind_caches(str(tmp_path)) is is_behind
    assert memory_folder.file_system_type(str(tmp_path)) == kind
