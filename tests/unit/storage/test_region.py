"""Device memory: shared between mappings, real once reserved, never promised beyond what there is."""

import errno
import faulthandler
import gc
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from coarse.errors import CapacityError
from coarse.storage import region as memory
from coarse.storage.region import DeviceMemory, check_capacity, create_memory_file

CAPACITY_BYTES = 1 << 20


@pytest.fixture
def device():
    made = DeviceMemory(create_memory_file("test", CAPACITY_BYTES), CAPACITY_BYTES)
    yield made
    made.close()


def allocated_bytes(device: DeviceMemory) -> int:
    return os.fstat(device.descriptor).st_blocks * 512


def test_what_one_mapping_writes_every_other_reads(device):
    other = DeviceMemory(os.dup(device.descriptor), CAPACITY_BYTES)
    device.view(4096, 5)[:] = np.arange(5, dtype=np.uint8)
    assert other.view(4096, 5).tolist() == [0, 1, 2, 3, 4]
    assert address_of(other.view(0, 1)) != address_of(device.view(0, 1))
    other.close()


def test_a_view_starts_where_it_says(device):
    assert address_of(device.view(123, 4)) == address_of(device.view(0, 1)) + 123
    assert device.is_at(address_of(device.view(123, 4)), 123)
    assert not device.is_at(address_of(device.view(123, 4)), 124)


def address_of(view: np.ndarray) -> int:
    return view.__array_interface__["data"][0]


def test_no_more_is_mapped_than_is_used_and_what_is_mapped_stays(monkeypatch):
    monkeypatch.setattr(memory, "_FIRST_MAPPING_BYTES", 1 << 16)
    large = 1 << 40  # more than any process may map here
    device = DeviceMemory(create_memory_file("test", large), large)
    first = device.view(0, 4096)
    first[:] = 3
    far = device.view((1 << 20) - 2048, 4096)
    far[:] = 4
    assert len(device._bytes) == (1 << 20) + (1 << 16)
    assert first.sum() == device.view(0, 4096).sum() == 3 * 4096
    assert address_of(first) != address_of(device.view(0, 1))
    assert device.is_at(address_of(first), 0)
    assert device.is_at(address_of(device.view(0, 1)), 0)
    with pytest.raises(ValueError, match="has no byte"):
        device.view(large, 1)
    device.close()


def test_a_limited_address_space_is_an_error_that_names_the_setting(tmp_path):
    program = """
import resource
from coarse.errors import CapacityError
from coarse.storage.region import DeviceMemory, create_memory_file
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 29), used + (3 << 29)))
device = DeviceMemory(create_memory_file("test", 1 << 40), 1 << 40)
device.view(0, 4096)[:] = 1
refusal = device.reserve(2 << 30, 4096)
assert "ulimit -v" in refusal and "lower device_capacity_bytes" in refusal, refusal
try:
    device.view(2 << 30, 4096)
except CapacityError as error:
    assert str(error) == refusal
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_memory_is_sparse_until_it_is_reserved(device):
    assert allocated_bytes(device) == 0
    assert device.reserve(8192, 4096) == ""
    assert allocated_bytes(device) == memory._EXTENT_BYTES
    assert not device.view(8192, 4096).any()


def test_small_regions_that_follow_each_other_ask_the_machine_once(device, monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "available_bytes", lambda: asked.append(1) or 1 << 40)
    for offset in range(0, memory._EXTENT_BYTES, 4096):
        assert device.reserve(offset, 4096) == ""
    assert len(asked) == 1


def test_where_there_is_little_room_no_more_is_taken_than_was_asked_for(device, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: memory._HEADROOM_BYTES + memory._EXTENT_BYTES)
    assert device.reserve(0, 4096) == ""
    assert allocated_bytes(device) == 4096


def test_a_view_outlives_the_memory_that_gave_it():
    device = DeviceMemory(create_memory_file("test", 4096), 4096)
    view = device.view(0, 4096)
    device.close()
    del device
    gc.collect()
    view[:] = 7
    assert view.sum() == 7 * 4096


def test_no_file_has_a_path_that_could_be_left_behind(device):
    assert os.readlink(f"/proc/self/fd/{device.descriptor}") == "/memfd:test (deleted)"


def test_a_forked_child_has_not_got_the_mapping(device):
    device.view(0, 1)[:] = 1
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os._exit(int(device.view(0, 1)[0]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGSEGV


# --- how much there is


def test_more_than_the_machine_has_left_is_refused_before_it_is_touched(device, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: memory._HEADROOM_BYTES + 4096)
    assert device.reserve(0, 4096) == ""
    refusal = device.reserve(4096, 4097)
    assert "4096 bytes of memory left" in refusal
    assert "4097 wanted" in refusal
    assert allocated_bytes(device) == 4096


def test_what_is_real_already_is_not_asked_for_again(device, monkeypatch):
    real_bytes = 64 * 4096
    monkeypatch.setattr(
        memory, "available_bytes", lambda: memory._HEADROOM_BYTES + real_bytes - allocated_bytes(device)
    )
    assert device.reserve(0, real_bytes) == ""
    assert device.reserve(0, real_bytes) == ""  # freed meanwhile, and given to another key
    assert device.reserve(4096, 5) == ""
    assert "of the 4096 wanted" in device.reserve(4096, real_bytes)  # one page beyond


def test_what_the_kernel_refuses_is_told(device, monkeypatch):
    def refuse(descriptor: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert "No space left on device" in device.reserve(0, 4096)


def test_devices_that_do_not_fit_together_are_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    check_capacity(500, 2)
    with pytest.raises(CapacityError, match=r"2 memory devices of 501 bytes.*has 1000 bytes.*lower"):
        check_capacity(501, 2)


def test_a_view_is_whole_though_another_thread_maps_less_meanwhile(device, monkeypatch):
    monkeypatch.setattr(memory, "_FIRST_MAPPING_BYTES", 4096)
    small = DeviceMemory(os.dup(device.descriptor), CAPACITY_BYTES)
    first, mapped = small._bytes, small._map

    def map_beside_another(end):
        newest = mapped(end)
        small._bytes = first  # as a thread does that wanted less, and ends later
        return newest

    monkeypatch.setattr(small, "_map", map_beside_another)
    assert small.view(0, 8192).nbytes == 8192
    small.close()
