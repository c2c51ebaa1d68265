"""Buffers of a GPU are taken once and used again."""

import numpy as np

from coarse.gpu.buffers import GpuBuffers
from tests.support.gpu_stand_in import StandInGpus


def test_what_was_given_back_is_used_again_and_what_is_in_use_is_not():
    gpus = StandInGpus()
    buffers = GpuBuffers(gpus, 0)
    first, second = buffers.lend(), buffers.lend()
    one, other = first.on_gpu(1000, np.dtype(np.float32)), second.on_gpu(1000, np.dtype(np.float32))
    assert one.size == 1000
    assert one.dtype == np.float32
    assert not np.shares_memory(one.values, other.values)
    left = gpus.free_bytes(0)
    first.give_back()
    first.give_back()  # what it had is given back once
    third, fourth = buffers.lend(), buffers.lend()
    assert np.shares_memory(third.on_gpu(4000, np.dtype(np.uint8)).values, one.values)
    assert gpus.free_bytes(0) == left
    fourth.on_gpu(1, np.dtype(np.uint8))
    assert gpus.free_bytes(0) < left


def test_host_memory_is_pinned_and_of_the_size_that_was_asked_for():
    gpus = StandInGpus()
    lent = GpuBuffers(gpus, 0).lend()
    array = lent.on_host(70_000, np.dtype(np.float64))
    assert array.shape == (70_000,)
    assert gpus.is_pinned(array)
    assert lent.on_host(0, np.dtype(np.float64)).size == 0
