"""The stand-in for CUDA keeps what the code relies on: the order of streams, their errors, and what lies where."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from coarse.errors import CapacityError, GpuError
from coarse.protocol.dtypes import DType, Op
from tests.support.gpu_stand_in import StandInGpus, StandInStream


@pytest.fixture
def gpus():
    return StandInGpus(2, strangers=[(0, 1)])


def test_nothing_is_done_before_an_event_is_asked_for(gpus):
    stream, target, source = gpus.stream(0), gpus.array(np.zeros(4, np.float32)), gpus.array(np.ones(4, np.float32))
    stream.arrays.copy(target, source)
    event = stream.record()
    assert target.values.tolist() == [0, 0, 0, 0]
    assert not event.is_done()  # asking is what lets the stream go on
    assert event.is_done()
    assert target.values.tolist() == [1, 1, 1, 1]


def test_what_is_freed_before_it_is_copied_is_an_error(gpus):
    stream, target = gpus.stream(0), gpus.array(np.zeros(4, np.float32))
    stream.arrays.copy(target, gpus.array(np.ones(4, np.float32)))
    with pytest.raises(GpuError, match="has been freed"):
        stream.record().wait()


def test_a_stream_does_things_in_order_and_an_event_covers_those_before_it(gpus):
    stream, target = gpus.stream(0), gpus.array(np.zeros(1, np.int32))
    events = []
    for value in range(1, 4):
        stream.arrays.copy(target, np.array([value], np.int32))
        events.append(stream.record())
    events[1].wait()
    assert target.values.tolist() == [2]
    assert not events[2].is_done()


def test_two_streams_have_no_order_but_for_what_one_waits_for(gpus):
    first, second, value = gpus.stream(0), gpus.stream(0), gpus.array(np.zeros(1, np.int32))
    read = gpus.array(np.zeros(1, np.int32))
    first.arrays.copy(value, np.array([7], np.int32))
    second.arrays.copy(read, value)
    second.record().wait()
    assert read.values.tolist() == [0]
    second.wait_for(first.record())
    second.arrays.copy(read, value)
    second.record().wait()
    assert read.values.tolist() == [7]


def test_pageable_memory_is_read_at_once_and_pinned_memory_in_its_turn(gpus):
    stream = gpus.stream(0)
    pageable, pinned = np.zeros(4, np.uint8), gpus.pinned(4)
    pinned[:] = 0
    targets = [gpus.array(np.full(4, 9, np.uint8)) for _ in range(2)]
    for target, source in zip(targets, (pageable, pinned), strict=True):
        stream.arrays.copy(target, source)
        source[:] = 5
    stream.record().wait()
    assert [target.values.tolist() for target in targets] == [[0] * 4, [5] * 4]


def test_after_an_error_every_event_of_the_stream_raises_it(gpus):
    stream = gpus.stream(0)
    before = stream.record()
    stream.fail()
    after = stream.record()
    assert before.is_done()
    for _ in range(2):
        with pytest.raises(GpuError, match="illegal memory access"):
            after.wait()


def test_a_sum_reaches_only_memory_that_its_gpu_reaches(gpus):
    own, other = gpus.array(np.ones(2, np.float32), 0), gpus.array(np.ones(2, np.float32), 1)
    with pytest.raises(GpuError, match="GPU 0 was given memory that GPU 1 reaches"):
        gpus.stream(0).arrays.reduce([own, other], [own], DType.FLOAT32, Op.SUM, 1)
    assert not gpus.can_access(0, 1)
    assert gpus.can_access(1, 1)


def test_numpy_cannot_read_a_gpu_s_array(gpus):
    with pytest.raises(TypeError, match="numpy cannot read"):
        np.asarray(gpus.array(np.ones(2)))


def test_a_gpu_has_no_more_than_it_has(gpus):
    with pytest.raises(CapacityError, match="out of memory"):
        gpus.allocate(0, 1 << 29)


def test_pages_are_pinned_once_and_copied_whole(gpus):
    host = np.zeros(8192, np.uint8)
    gpus.pin(host[:4096])
    with pytest.raises(CapacityError, match="AlreadyRegistered"):
        gpus.pin(host[4000:])
    target = gpus.array(np.zeros(8192, np.uint8))
    with pytest.raises(GpuError, match="invalid argument"):
        gpus.stream(0).arrays.copy(target, host)
    gpus.unpin(host[:4096])
    gpus.stream(0).arrays.copy(target, host)


OWNER = """
import sys
from tests.support.gpu_stand_in import StandInGpus
gpus = StandInGpus()
memory = gpus.allocate(0, 8)
memory.values[:] = 3
print(gpus.export(memory).decode(), flush=True)
sys.stdin.read()
"""


def test_a_handle_opens_in_another_process_until_its_own_has_died(gpus):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        handle = owner.stdout.readline().encode()[:64]
        memory = gpus.open(handle, 8, 0)
        assert memory.values.tolist() == [3] * 8
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        with pytest.raises(GpuError, match="invalid resource handle"):
            gpus.open(handle, 8, 0)


def test_a_user_s_stream_is_the_current_one_within(gpus):
    own = StandInStream(gpus, 0)
    before = gpus.current_stream(0)
    with gpus.using(0, gpus.pointer_of(own)):
        assert gpus.current_stream(0) is own
    assert gpus.current_stream(0) is before
