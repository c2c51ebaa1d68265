"""Tensors beyond 2 GiB: one in device memory that two workers share, or one that is copied in and out."""

import sys

import numpy as np

import coarse

NUM_ELEMENTS = (1 << 29) + 1  # of float32: just above 2 GiB


def in_device_memory() -> None:
    """Two regions, so more than 4 GiB in all."""
    array = coarse.device_array("large", (NUM_ELEMENTS,), np.float32)
    array[::100_003] = coarse.rank() + 1
    array[-1] = 10 * (coarse.rank() + 1)
    coarse.push_pull(array, "large")
    mean = (coarse.size() + 1) / 2
    assert array[-1] == 10 * mean
    assert (array[::100_003] == mean).all()
    assert array[1::100_003].max() == 0.0


def copied() -> None:
    array = np.zeros(NUM_ELEMENTS, np.float32)
    array[::100_003] = np.arange(len(array[::100_003]))
    array[-1] = -7
    before = array[::100_003].copy()
    result = coarse.push_pull_async(array, "large", coarse.Sum, out=array).wait()
    assert result[-1] == -7
    assert (result[::100_003] == before).all()
    assert result[1::100_003].max() == 0.0


if __name__ == "__main__":
    coarse.init()
    {"in_device_memory": in_device_memory, "copied": copied}[sys.argv[1]]()
