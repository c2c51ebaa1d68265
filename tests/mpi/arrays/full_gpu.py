"""Pushes an array that the memory devices' GPU has no room for; then a smaller one, whose sum is checked.

Every worker writes the error that it gets. Arguments: the folder to write to.
"""

import sys
import time

import numpy as np

import coarse
from coarse.gpu.available import gpus
from coarse.gpu.interface import GpuArray
from tests.support.claims import report_error


def ones(num_elements: int) -> GpuArray:
    array = gpus().empty(0, (num_elements,), np.dtype(np.float32))
    gpus().current_stream(0).arrays.copy(array, np.ones(num_elements, np.float32))
    return array


coarse.init()
began_s = time.perf_counter()
try:
    coarse.push_pull(ones(10 << 20), "large", coarse.Sum)
except coarse.CoarseError as error:
    report_error(sys.argv[1], coarse.rank(), time.perf_counter() - began_s, error)
out = np.empty(1000, np.float32)
coarse.push_pull_async(ones(1000), "small", coarse.Sum, out=out).wait()
assert (out == coarse.size()).all()
coarse.shutdown()
