"""devdax devices: a tree that stands for /sys, and a file that stands for the character device."""

import fcntl
import mmap
import os
import subprocess
import sys

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.storage import dax
from coarse.storage.dax import open_dax
from coarse.storage.region import DeviceMemory
from tests.support.dax_tree import make_dax_tree

MIB = 1 << 20
SIZE_BYTES, ALIGN_BYTES = 8 * MIB, 2 * MIB


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A kernel that knows one device, dax0.0, as 252:0."""
    root = tmp_path / "sys"
    make_dax_tree(root, SIZE_BYTES, ALIGN_BYTES)
    monkeypatch.setattr(dax, "_SYS", root)
    monkeypatch.setattr(dax, "device_number", lambda path: "252:0" if os.stat(path) else None)
    return root


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "dax0.0"
    file.write_bytes(b"\xff" * SIZE_BYTES)
    return str(file)


def test_without_a_wanted_capacity_a_device_has_all_of_it(system, path):
    file = open_dax(path, None)
    assert file.capacity_bytes == SIZE_BYTES
    os.close(file.descriptor)


@pytest.mark.parametrize(("wanted", "mapped"), [(1, 1), (ALIGN_BYTES, 1), (ALIGN_BYTES + 1, 2), (SIZE_BYTES, 4)])
def test_a_mapping_is_whole_units_of_the_alignment(system, path, wanted, mapped):
    file = open_dax(path, wanted)
    assert file.capacity_bytes == mapped * ALIGN_BYTES
    os.close(file.descriptor)


def test_devices_may_have_ranges_of_one_device(system, path):
    first = open_dax(path, None, 0, ALIGN_BYTES)
    second = open_dax(path, ALIGN_BYTES + 1, ALIGN_BYTES)
    assert (first.capacity_bytes, second.capacity_bytes) == (ALIGN_BYTES, 2 * ALIGN_BYTES)
    assert second.align_bytes == ALIGN_BYTES
    memory = DeviceMemory(second.descriptor, second.capacity_bytes, second.source, second.begin_bytes)
    memory.view(5, 1)[:] = 7
    with open(path, "rb") as seen:
        seen.seek(ALIGN_BYTES)
        assert seen.read(7) == b"\xff\xff\xff\xff\xff\x07\xff"
    with pytest.raises(ConfigError, match="another process uses the device"):
        open_dax(path, None, 3 * ALIGN_BYTES)  # the second has it to the end
    memory.close()
    os.close(first.descriptor)


def test_a_range_begins_with_a_whole_unit_of_the_alignment(system, path):
    with pytest.raises(ConfigError, match=rf"alignment, {ALIGN_BYTES}, got 4096; write 0 or {ALIGN_BYTES}"):
        open_dax(path, None, 4096)


def test_nothing_has_to_be_made_real(system, path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")  # the device has none
    file = open_dax(path, None)
    memory = DeviceMemory(file.descriptor, file.capacity_bytes, file.source)
    assert memory.reserve(0, SIZE_BYTES) == ""
    memory.view(5, 1)[:] = 7
    with open(path, "rb") as seen:
        assert seen.read(7) == b"\xff\xff\xff\xff\xff\x07\xff"
    memory.close()


def test_more_than_the_device_has_is_refused_with_both_numbers(system, path):
    with pytest.raises(CapacityError, match=rf"{SIZE_BYTES + 1} bytes are wanted .* has {SIZE_BYTES}; lower"):
        open_dax(path, SIZE_BYTES + 1)


def test_an_absent_device_is_refused_with_those_there_are(system, tmp_path):
    with pytest.raises(ConfigError, match=r"no such device \(No such file.*dax devices here: dax0\.0;"):
        open_dax(str(tmp_path / "absent"), None)


@pytest.mark.parametrize("other", ["/dev/null", "/dev"])
def test_what_is_no_devdax_device_is_refused_unopened(monkeypatch, other):
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(ConfigError, match=r"no devdax device; dax devices here.*folder:"):
        open_dax(other, None)


def test_a_device_that_the_kernel_uses_as_memory_is_named_by_its_node(system, path):
    driver = system / "devices" / "dax0.0" / "driver"
    driver.unlink()
    driver.symlink_to(system / "bus" / "dax" / "drivers" / "kmem")
    with pytest.raises(ConfigError, match=r"memory of NUMA node 2; name 'numa:2'.*--mode=devdax --force dax0\.0"):
        open_dax(path, None)


def test_a_device_that_is_not_permitted_is_refused_with_what_to_do(system, path, monkeypatch):
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"cannot be opened \(Permission denied\); give the job's user"):
        open_dax(path, None)


# --- one job at a time


def test_the_device_is_locked_for_as_long_as_anybody_maps_it(system, path):
    file = open_dax(path, None)
    mapping = mmap.mmap(file.descriptor, ALIGN_BYTES)
    os.close(file.descriptor)
    with pytest.raises(ConfigError, match="another process uses the device"):
        open_dax(path, None)
    mapping.close()
    os.close(open_dax(path, None).descriptor)


def test_a_refused_device_is_not_left_open(system, path):
    held = os.open(path, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError):
        open_dax(path, None)
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(held)


def test_who_has_mapped_it_without_a_lock_is_named(system, path):
    program = "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),4096); print(1,flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(ConfigError, match=rf"process {user.pid} uses the device; name another"):
            open_dax(path, None)
        user.communicate(b"\n")
    os.close(open_dax(path, None).descriptor)
