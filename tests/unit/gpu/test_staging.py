"""Pinned host memory beside arrays on GPUs: what waits for what, what is used again, and what a refusal becomes."""

import weakref

import numpy as np
import pytest

from coarse.errors import GpuError
from coarse.gpu.available import use
from coarse.gpu.staging import HostStaging
from tests.support.gpu_stand_in import StandInGpus

NUM_BYTES = 1000


@pytest.fixture
def gpus():
    chosen = StandInGpus(2)
    use(chosen)
    yield chosen
    use(None)


def test_a_copy_to_the_host_begins_once_the_users_stream_has_written(gpus):
    array = gpus.array(np.zeros(NUM_BYTES, np.uint8))
    written = np.arange(NUM_BYTES, dtype=np.uint8)
    gpus.current_stream(0).copy(array, written)
    stage = HostStaging().stage(0, NUM_BYTES)
    event = stage.read(array)
    assert not np.array_equal(stage.bytes, written)
    event.wait()
    assert np.array_equal(stage.bytes, written)


def test_arrays_beside_one_memory_may_be_on_several_gpus(gpus):
    arrays = [gpus.array(np.zeros(4, np.uint8), gpu) for gpu in (0, 1)]
    gpus.current_stream(1).copy(arrays[1], np.full(4, 7, np.uint8))
    stage = HostStaging().stage(0, 8)
    for event in [stage.read(array, 4 * place) for place, array in enumerate(arrays)]:
        event.wait()
    assert stage.bytes.tolist() == [0, 0, 0, 0, 7, 7, 7, 7]


def test_a_part_is_read_to_its_place(gpus):
    stage = HostStaging().stage(0, 10)
    stage.bytes[:] = 0
    array = gpus.array(np.full(4, 7, np.uint8))
    stage.read(array, 3).wait()
    assert stage.bytes.tolist() == [0, 0, 0, 7, 7, 7, 7, 0, 0, 0]


def test_a_copy_to_a_gpu_begins_once_the_users_stream_has_read(gpus):
    array = gpus.array(np.full(NUM_BYTES, 1, np.uint8))
    read = gpus.array(np.zeros(NUM_BYTES, np.uint8))
    gpus.current_stream(0).copy(read, array)
    stage = HostStaging().stage(0, NUM_BYTES)
    is_free = gpus.current_stream(0).record()
    stage.bytes[:] = 2
    event = stage.write(array, is_free)
    assert array.values[0] == 1
    event.wait()
    assert array.values.tolist() == [2] * NUM_BYTES
    assert read.values.tolist() == [1] * NUM_BYTES


def test_memory_is_pinned_and_used_again_once_its_copy_is_done(gpus):
    staging, array = HostStaging(), gpus.array(np.zeros(NUM_BYTES, np.uint8))
    first = staging.stage(0, NUM_BYTES)
    assert gpus.is_pinned(first.bytes)
    first.bytes[:] = 1
    event = first.write(array, gpus.current_stream(0).record())
    first.give_back(event)
    second = staging.stage(0, NUM_BYTES)
    assert not np.shares_memory(first.bytes, second.bytes)
    event.wait()
    assert np.shares_memory(first.bytes, staging.stage(0, NUM_BYTES).bytes)


def test_memory_of_which_nothing_was_copied_is_free_at_once(gpus):
    staging = HostStaging()
    first = staging.stage(0, NUM_BYTES)
    first.give_back()
    assert np.shares_memory(first.bytes, staging.stage(0, NUM_BYTES).bytes)


def test_memory_that_is_let_go_while_it_is_written_is_kept_until_then(gpus):
    staging, array = HostStaging(), gpus.array(np.zeros(NUM_BYTES, np.uint8))
    stage = staging.stage(0, NUM_BYTES)
    event, memory = stage.read(array), weakref.ref(stage.bytes.base)
    del stage
    assert memory() is not None
    event.wait()
    staging.stage(0, NUM_BYTES)
    assert memory() is None


def test_where_cuda_pins_no_more_ordinary_memory_does_as_well():
    gpus = StandInGpus(1, most_pinned_bytes=0)
    use(gpus)
    try:
        staging, array = HostStaging(), gpus.array(np.arange(NUM_BYTES, dtype=np.uint8))
        with pytest.warns(RuntimeWarning, match="hold up backward"):
            stage = staging.stage(0, NUM_BYTES)
        stage.read(array)  # has been done when this returns, as CUDA has it
        assert np.array_equal(stage.bytes, array.values)
        stage.give_back()
        assert not gpus.is_pinned(staging.stage(0, NUM_BYTES).bytes)  # and says nothing more
    finally:
        use(None)


def test_a_copy_that_failed_leaves_its_memory_to_nobody(gpus):
    staging, array = HostStaging(), gpus.array(np.zeros(NUM_BYTES, np.uint8))
    stage = staging.stage(0, NUM_BYTES)
    staging.stream("to the GPU", 0).fail()
    event = stage.write(array, gpus.current_stream(0).record())
    stage.give_back(event)
    with pytest.raises(GpuError):
        event.wait()
    assert not np.shares_memory(stage.bytes, staging.stage(0, NUM_BYTES).bytes)
