"""A slot of state memory: whole or not there, at every store, and damage is noticed."""

import os

import numpy as np
import pytest

from coarse.errors import CapacityError, StorageError
from coarse.protocol.units import MIB
from coarse.storage import state_file
from coarse.storage.region import create_memory_file
from coarse.storage.state_file import BlockSums, StateFile


@pytest.fixture
def descriptor():
    made = create_memory_file("slot", 0)
    yield made
    os.close(made)


def opened(descriptor: int) -> StateFile:
    return StateFile(os.dup(descriptor), "slot 0 of worker 0's state memory")


def write(slot: StateFile, number: int, data: np.ndarray, layout: bytes = b"what lies where") -> None:
    target = slot.begin(len(data), len(layout))
    sums = BlockSums(target, slot.checksum)
    for begin in range(0, len(data), MIB // 2 + 5):
        part = data[begin : begin + MIB // 2 + 5]
        target[begin : begin + len(part)] = part
        sums.written_to(begin + len(part))
    slot.record(number, layout, sums.sums)


def some_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, count, np.uint8)


@pytest.mark.parametrize("count", [0, 1, 1000, MIB, 3 * MIB + 17])
def test_another_process_finds_what_was_recorded(descriptor, count):
    data = some_bytes(count)
    write(opened(descriptor), 7, data)
    found = opened(descriptor).read()
    assert found is not None
    assert (found.number, found.layout, len(found.sums)) == (7, b"what lies where", -(-count // MIB))
    assert np.array_equal(found.data, data)


def test_a_slot_without_a_version_has_none(descriptor):
    slot = opened(descriptor)
    assert slot.read() is None
    assert slot.number() == 0


def test_a_version_that_is_begun_is_not_there_until_it_is_recorded(descriptor):
    slot = opened(descriptor)
    write(slot, 1, some_bytes(100))
    target = slot.begin(200, 4)
    assert opened(descriptor).read() is None
    target[:] = 3
    assert opened(descriptor).read() is None
    slot.record(3, b"four", np.array([slot.checksum(target)], np.uint32))
    found = opened(descriptor).read()
    assert found is not None
    assert found.number == 3


def test_a_slot_grows(descriptor):
    slot = opened(descriptor)
    for number, count in enumerate((10, 5 * MIB, 10), 1):
        write(slot, number, some_bytes(count))
        found = slot.read()
        assert found is not None
        assert np.array_equal(found.data, some_bytes(count))


def test_every_changed_byte_is_noticed(descriptor):
    write(opened(descriptor), 2, some_bytes(100))
    used = [*range(48), *range(4096, 4096 + 100 + 15 + 4)]
    for at in used:
        before = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([before[0] ^ 0x10]), at)
        slot = opened(descriptor)
        with pytest.raises(StorageError, match=r"version \d+ in slot 0 of worker 0's state memory is damaged"):
            slot.read()
        os.pwrite(descriptor, before, at)
    assert opened(descriptor).read() is not None


def test_every_length_that_is_cut_off_is_noticed(descriptor):
    write(opened(descriptor), 2, some_bytes(9000))
    for nbytes in range(4096, 4096 + 9000 + 15, 97):
        os.ftruncate(descriptor, nbytes)
        with pytest.raises(StorageError, match="is damaged"):
            opened(descriptor).read()
        os.ftruncate(descriptor, os.fstat(descriptor).st_size)


def test_no_room_is_an_error_with_the_bytes(descriptor, monkeypatch):
    monkeypatch.setattr(state_file, "available_bytes", lambda: 70 * MIB)
    slot = opened(descriptor)
    slot.reserve(5 * MIB, 10)
    with pytest.raises(CapacityError, match=r"takes \d+ bytes.*\d+ bytes are left.*--restarts"):
        slot.reserve(20 * MIB, 10)


class Caches:
    """Memory beyond caches: it has of a slot what was flushed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.images: list[bytes] = []
        """Memory after each flush."""
        self._memory = bytearray()

    def flush(self, lines: np.ndarray) -> None:
        if not len(lines):
            return
        whole = np.frombuffer(lines.base, np.uint8) if lines.base is not None else lines
        begin = lines.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        self._memory.extend(bytes(max(begin + len(lines) - len(self._memory), 0)))
        self._memory[begin : begin + len(lines)] = lines.tobytes()
        self.images.append(bytes(self._memory))


def test_on_memory_behind_caches_all_is_flushed_before_the_word_and_then_the_word(descriptor):
    caches = Caches(descriptor)
    slot = StateFile(os.dup(descriptor), "slot", caches.flush)
    numbers = []
    for number in (3, 5):
        write(slot, number, some_bytes(3000))
        for image in caches.images:
            beyond = create_memory_file("beyond", 0)
            os.ftruncate(beyond, max(len(image), 8192))
            os.pwrite(beyond, image, 0)
            found = opened(beyond).read()  # raises where it counts and is not whole
            numbers.append(0 if found is None else found.number)
            os.close(beyond)
        caches.images.clear()
    assert numbers == [0, 0, 3, 0, 0, 5]


def test_a_file_that_has_its_bytes_is_not_grown(descriptor):
    os.ftruncate(descriptor, 3 * 4096)
    slot = StateFile(os.dup(descriptor), "slot", lambda lines: None)
    write(slot, 1, some_bytes(3000))
    assert os.fstat(descriptor).st_size == 3 * 4096
    assert opened(descriptor).read().number == 1
