"""Memory of another process: a forked child's, which the kernel lets its parent reach."""

import ctypes
import mmap
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from coarse.errors import LentMemoryError
from coarse.gpu.interface import address_of
from coarse.storage import lent
from coarse.storage.lent import LentArray, is_lendable, why_not, why_not_here

pytestmark = pytest.mark.skipif(bool(why_not_here()), reason="the kernel lets no process reach another's memory here")
NUM_ELEMENTS = 100_000
VALUE = 0x10E


class Child:
    """A process whose `numbers` are its own, and count from 0."""

    def __init__(self) -> None:
        self.numbers = np.zeros(NUM_ELEMENTS, np.float32)
        heard, says = os.pipe()
        self.process_id = os.fork()
        if self.process_id == 0:
            self.numbers[:] = np.arange(NUM_ELEMENTS)
            os.write(says, b"!")
            signal.pause()
        os.close(says)
        assert os.read(heard, 1) == b"!"
        os.close(heard)
        self.array = LentArray(
            "worker 0", self.process_id, address_of(self.numbers), self.numbers.dtype, NUM_ELEMENTS
        )

    def end(self) -> None:
        if self.process_id:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)
            self.process_id = 0


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.end()


def test_elements_are_read_and_written_in_the_other_process_alone(child):
    scratch = np.empty(1000, np.float32)
    assert len(child.array) == NUM_ELEMENTS
    assert np.array_equal(child.array.read(500, 1400, scratch), np.arange(500, 1400))
    child.array.write(500, np.full(100, -1, np.float32))
    assert np.array_equal(child.array.read(590, 610, scratch), [-1] * 10 + list(range(600, 610)))
    assert not child.numbers.any()


def test_what_is_too_large_for_one_call_is_moved_by_several(child, monkeypatch):
    monkeypatch.setattr(lent, "_MOST_BYTES", 4096)
    into = np.empty(NUM_ELEMENTS, np.float32)
    assert np.array_equal(child.array.read(0, NUM_ELEMENTS, into), np.arange(NUM_ELEMENTS))
    child.array.write(0, into[::-1].copy())
    assert np.array_equal(child.array.read(0, NUM_ELEMENTS, into), np.arange(NUM_ELEMENTS)[::-1])


def test_one_place_is_the_same_place_and_no_other(child):
    at, dtype = address_of(child.numbers), child.numbers.dtype
    assert child.array.is_at(LentArray("", child.process_id, at, dtype, 3))
    assert not child.array.is_at(LentArray("", child.process_id, at + 4, dtype, 3))
    assert not child.array.is_at(LentArray("", os.getpid(), at, dtype, 3))
    assert not child.array.is_at(child.numbers)


@pytest.mark.parametrize("move", ["read", "write"])
def test_a_process_that_has_ended_is_told_from_memory_that_is_gone(child, move):
    values = np.ones(4, np.float32)

    def try_to_move(array: LentArray) -> LentMemoryError:
        with pytest.raises(LentMemoryError, match=r"the memory of worker 0") as raised:
            array.read(0, 4, values) if move == "read" else array.write(0, values)
        return raised.value

    nowhere = LentArray("worker 0", child.process_id, 4096, values.dtype, 4)
    assert not try_to_move(nowhere).has_ended
    assert "Bad address" in str(try_to_move(nowhere))
    child.end()
    assert try_to_move(child.array).has_ended


def test_memory_that_ends_within_a_block_is_an_error_and_no_short_read():
    pages = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    begin = address_of(pages)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(begin + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    half_gone = LentArray("worker 0", os.getpid(), begin, pages.dtype, len(pages))
    into = np.empty_like(pages)
    half_gone.read(0, mmap.PAGESIZE, into)
    with pytest.raises(LentMemoryError):
        half_gone.read(0, len(pages), into)
    assert not is_lendable(pages)
    assert is_lendable(pages[: mmap.PAGESIZE])


def test_a_probe_says_why_it_failed():
    word = np.array([VALUE], np.int64)
    assert why_not(os.getpid(), address_of(word), VALUE) == ""
    assert "another value" in why_not(os.getpid(), address_of(word), VALUE + 1)
    assert why_not(os.getpid(), 4096, VALUE) == "Bad address"
    assert why_not(2**30, address_of(word), VALUE) == "No such process"
