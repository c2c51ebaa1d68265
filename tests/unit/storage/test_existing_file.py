"""Files that are there already, on the file systems that this machine has: used as they are, and left as they were."""

import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.protocol.partition import RankPlace, Role
from coarse.protocol.place import ExistingFile
from coarse.storage import existing_file
from coarse.storage.existing_file import holes_of, open_existing, refuse_overlap_elsewhere
from coarse.storage.region import DeviceMemory

MIB = 1 << 20
PAGE = mmap.PAGESIZE


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request, tmp_path):
    """A folder of the file system of pytest, and one of a tmpfs."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def made(folder: Path, nbytes: int, byte: bytes = b"\xff") -> str:
    """The path of a new file that is full of one byte."""
    (folder / "pool").write_bytes(byte * nbytes)
    return str(folder / "pool")


def mapped(file) -> DeviceMemory:
    return DeviceMemory(file.descriptor, file.capacity_bytes, file.source, file.begin_bytes)


def test_a_device_writes_into_the_file_and_leaves_its_name_its_length_and_other_bytes(folder):
    path = made(folder, 4 * MIB)
    before = os.stat(path)
    device = mapped(open_existing(path, None))
    assert device.capacity_bytes == 4 * MIB
    assert device.reserve(0, 4 * MIB) == ""
    device.view(PAGE + 3, 2)[:] = 7
    device.close()
    after = os.stat(path)
    assert (after.st_ino, after.st_size, after.st_nlink) == (before.st_ino, 4 * MIB, 1)
    expected = bytearray(b"\xff" * (4 * MIB))
    expected[PAGE + 3 : PAGE + 5] = b"\x07\x07"
    assert Path(path).read_bytes() == expected


def test_a_file_without_fallocate_needs_none(folder, monkeypatch):
    """As on famfs."""
    monkeypatch.delattr(os, "posix_fallocate")
    device = mapped(open_existing(made(folder, MIB), None))
    assert device.reserve(0, MIB) == ""
    device.close()


def test_two_devices_have_ranges_of_one_file_and_no_byte_beside_them(folder):
    path = made(folder, 8 * PAGE)
    first = mapped(open_existing(path, None, PAGE, 2 * PAGE))
    second = mapped(open_existing(path, None, 4 * PAGE))
    assert (first.capacity_bytes, second.capacity_bytes) == (2 * PAGE, 4 * PAGE)
    first.view(0, 2 * PAGE)[:] = 1
    second.view(0, 4 * PAGE)[:] = 2
    expected = b"\xff" * PAGE + b"\x01" * 2 * PAGE + b"\xff" * PAGE + b"\x02" * 4 * PAGE
    assert Path(path).read_bytes() == expected
    first.close()
    second.close()


@pytest.mark.parametrize(("wanted", "pages"), [(1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3), (None, 3)])
def test_a_device_has_whole_pages_and_none_that_the_file_has_in_part(folder, wanted, pages):
    file = open_existing(made(folder, 3 * PAGE + 5), wanted)
    assert file.capacity_bytes == pages * PAGE
    os.close(file.descriptor)


def test_without_a_range_a_file_is_used_from_its_beginning(tmp_path):
    file = open_existing(made(tmp_path, MIB), None)
    assert file.begin_bytes == 0
    os.close(file.descriptor)


@pytest.mark.parametrize(
    ("size", "wanted", "offset", "nbytes", "words"),
    [
        (MIB, MIB + 1, 0, None, rf"{MIB + 1} bytes are wanted but the file has {MIB}; lower device_capacity"),
        (MIB, MIB, PAGE, None, rf"{MIB} bytes are wanted but the file has {MIB - PAGE}; lower"),
        (MIB, None, PAGE, MIB, rf"bytes {PAGE} to {MIB + PAGE} are wanted but the file has {MIB}; lower memory_off"),
        (MIB, None, MIB, None, rf"{MIB} bytes, of which 0 come after byte {MIB} and all are asked for: no unit"),
        (MIB, None, 4 * MIB, None, rf"{MIB} bytes, of which 0 come after byte {4 * MIB}"),
        (PAGE - 1, None, 0, None, rf"no unit of {PAGE}; name a longer one"),
        (0, None, 0, None, "no unit of"),
        (MIB, None, 0, 5, "5 are asked for: no unit of"),
    ],
)
def test_a_file_that_is_too_short_is_refused_with_the_numbers(folder, size, wanted, offset, nbytes, words):
    with pytest.raises(CapacityError, match=words):
        open_existing(made(folder, size), wanted, offset, nbytes)


def test_an_offset_between_two_pages_is_refused_with_the_next_ones(tmp_path):
    with pytest.raises(ConfigError, match=rf"multiple of the file's alignment, {PAGE}, got 5000; write {PAGE} or"):
        open_existing(made(tmp_path, MIB), None, 5000)


def test_an_absent_file_is_refused_with_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file \(No such file.*famfs creat -s 64G PATH.* nor grows it"):
        open_existing(str(tmp_path / "absent"), None)
    assert not os.listdir(tmp_path)


def test_what_is_no_regular_file_is_refused_unopened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    for path, words in (
        (tmp_path, rf"this is a folder; name a file in it, or 'folder:{tmp_path}'"),
        ("/dev/null", "this is a character device; name it 'dax:/dev/null'"),
        (tmp_path / "pipe", "this is no regular file; name one"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_existing(str(path), None)


def test_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    path = made(tmp_path, MIB)

    def refuse(path: str, flags: int) -> int:
        assert flags & os.O_RDWR
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"reading and writing \(Read-only file system\); give the job's user both"):
        open_existing(path, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_file_of_somebody_else_is_refused():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = made(Path(name), MIB)
        os.chmod(name, 0o755)
        os.chmod(path, 0o644)
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=r"writing \(Permission denied\); give the job's user both"):
                open_existing(path, None)
        finally:
            os.seteuid(0)


def test_a_file_that_cannot_be_mapped_is_refused(tmp_path, monkeypatch):
    path = made(tmp_path, MIB)

    def refuse(*_: object, **__: object) -> mmap.mmap:
        raise OSError(19, "No such device")

    monkeypatch.setattr(existing_file.mmap, "mmap", refuse)
    with pytest.raises(ConfigError, match=r"cannot be mapped \(No such device\); name one"):
        open_existing(path, None)


# --- holes


def test_the_holes_of_what_is_used_are_filled_and_no_others(tmp_path):
    path = tmp_path / "pool"
    with open(path, "wb") as file:
        file.truncate(64 * PAGE)
        file.seek(8 * PAGE)
        file.write(b"\xff" * PAGE)
    found = open_existing(str(path), 16 * PAGE)
    assert os.fstat(found.descriptor).st_size == 64 * PAGE
    assert os.fstat(found.descriptor).st_blocks * 512 >= 16 * PAGE
    assert os.fstat(found.descriptor).st_blocks * 512 < 64 * PAGE
    device = mapped(found)
    assert bytes(device.view(8 * PAGE, PAGE)) == b"\xff" * PAGE
    assert not device.view(0, 8 * PAGE).any()
    device.close()


def test_holes_are_those_of_the_range(folder):
    path = folder / "pool"
    with open(path, "wb") as file:
        file.truncate(64 * PAGE)
        file.seek(8 * PAGE)
        file.write(b"\xff" * PAGE)
    descriptor = os.open(path, os.O_RDWR)
    assert holes_of(descriptor, range(0, 64 * PAGE)) == [range(0, 8 * PAGE), range(9 * PAGE, 64 * PAGE)]
    assert holes_of(descriptor, range(2 * PAGE, 4 * PAGE)) == [range(2 * PAGE, 4 * PAGE)]
    assert holes_of(descriptor, range(8 * PAGE, 9 * PAGE)) == []
    os.close(descriptor)


def test_a_full_file_system_is_told_at_once_and_not_by_a_signal(tmp_path, monkeypatch):
    def full(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "pool"
    path.touch()
    os.truncate(path, 16 * PAGE)
    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(os.listdir("/proc/self/fd"))
    words = rf"{16 * PAGE} bytes of the file are holes, and \S+ cannot fill them \(No space left on device\); make room"
    with pytest.raises(CapacityError, match=words):
        open_existing(str(path), None)
    assert set(os.listdir("/proc/self/fd")) == before


SMALL_TMPFS = """
set -e
mount -t tmpfs -o size=1m tmpfs "$1"
truncate -s 8m "$1/sparse"
head -c 65536 /dev/urandom > "$1/whole"
mount -t tmpfs -o size=1m tmpfs "$2"
head -c 65536 /dev/zero > "$2/file"
mount -o remount,ro "$2"
"$3" - "$1" "$2" <<'PYTHON'
import sys
from coarse.errors import CoarseError
from coarse.storage.existing_file import open_existing
for path in (f"{sys.argv[1]}/sparse", f"{sys.argv[1]}/whole", f"{sys.argv[2]}/file"):
    try:
        print(open_existing(path, None).capacity_bytes)
    except CoarseError as error:
        print(type(error).__name__, error)
PYTHON
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare(1)")
def test_a_sparse_file_on_a_real_full_tmpfs_and_a_file_on_a_read_only_one(tmp_path):
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own_mounts, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives no namespaces")
    for name in ("full", "read_only"):
        (tmp_path / name).mkdir()
    folders = [str(tmp_path / name) for name in ("full", "read_only")]
    done = subprocess.run(
        [*own_mounts, "sh", "-c", SMALL_TMPFS, "sh", *folders, sys.executable],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sparse, whole, read_only = done.stdout.splitlines()
    assert sparse.startswith(f"CapacityError {8 * MIB} bytes of the file are holes, and tmpfs cannot fill them")
    assert whole == "65536"
    assert read_only.startswith("ConfigError the file cannot be opened for reading and writing (Read-only file system)")


# --- one device for each byte


def test_bytes_are_locked_for_as_long_as_anybody_maps_them(folder):
    path = made(folder, 8 * PAGE)
    file = open_existing(path, None, 0, 4 * PAGE)
    mapping = mmap.mmap(file.descriptor, PAGE)
    os.close(file.descriptor)
    with pytest.raises(ConfigError, match="another process uses the file; name another one, or wait"):
        open_existing(path, None, 2 * PAGE)
    os.close(open_existing(path, None, 4 * PAGE).descriptor)
    mapping.close()
    os.close(open_existing(path, None).descriptor)


def test_a_file_that_another_program_has_locked_as_a_whole_is_refused_and_left(folder):
    path = made(folder, 8 * PAGE)
    with open(path, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigError, match="another process uses the file"):
            open_existing(path, None)
        assert set(os.listdir("/proc/self/fd")) == before


def test_who_has_mapped_bytes_without_a_lock_is_named_and_whoever_has_others_is_not(tmp_path):
    path = made(tmp_path, 8 * PAGE)
    program = "import mmap, sys; file = open(sys.argv[1], 'r+b'); mapping = mmap.mmap(file.fileno(), 4096, offset=8192)"
    command = [sys.executable, "-c", f"{program}; print(1, flush=True); input()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(ConfigError, match=rf"process {user.pid} uses the file; name another"):
            open_existing(path, None)
        os.close(open_existing(path, None, 0, 2 * PAGE).descriptor)
        user.communicate(b"\n")
    os.close(open_existing(path, None).descriptor)


def on_other_host(memory: ExistingFile) -> RankPlace:
    return RankPlace(rank=3, roles=Role.MEMORY_DEVICE, node="b", memory=memory)


def test_hosts_that_share_a_file_system_may_not_share_bytes(tmp_path, monkeypatch):
    path = made(tmp_path, 8 * PAGE)
    monkeypatch.setattr(existing_file, "file_system_type", lambda _: "famfs")
    half = ExistingFile(path, 0, 4 * PAGE)
    with pytest.raises(ConfigError, match=r"rank 3 on b has bytes of it too \('file:.*'\), and hosts share .* famfs"):
        refuse_overlap_elsewhere(half, [on_other_host(ExistingFile(path, PAGE))])
    refuse_overlap_elsewhere(half, [on_other_host(ExistingFile(path, 4 * PAGE))])
    refuse_overlap_elsewhere(half, [on_other_host(ExistingFile(f"{path}2"))])


def test_one_path_on_two_hosts_is_two_files_where_each_host_has_its_own_file_system(tmp_path):
    file = ExistingFile(made(tmp_path, 8 * PAGE))
    refuse_overlap_elsewhere(file, [on_other_host(file)])
    refuse_overlap_elsewhere(ExistingFile(str(tmp_path / "absent")), [on_other_host(file)])
