import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.contenders.protocol import fill_pattern, wrong_tensors
from benchmarks.workloads import Workload
from coarse.protocol import layout as _layout  # noqa: F401  (found before `coarse` is replaced)

WORKLOAD = Workload("w", (("a", (2, 3)), ("b", (5,))))


class OnePeer:
    """Stands for coarse with a second worker that pushed twice what this one pushes."""

    Sum = "sum"

    class Config:
        bucket_bytes = 2**20

    def __init__(self):
        self.names = []
        self.device_memory = {}

    def device_array(self, name, shape, dtype, op):
        assert op == self.Sum
        return self.device_memory.setdefault(name, np.zeros(shape, dtype))

    def push_pull_async(self, array, name, op, out=None):
        assert op == self.Sum
        self.names.append(name)
        is_in_device_memory = any(array is known for known in self.device_memory.values())
        assert is_in_device_memory == (out is None)
        return Pending(array, out)

    def grouped_push_pull(self, arrays, name, op):
        assert op == self.Sum
        self.names.append(name)
        return [array * 3 for array in arrays]


class Pending:
    def __init__(self, array, out):
        self.array, self.out = array, out

    def wait(self):
        target = self.array if self.out is None else self.out
        target[...] = self.array * 3
        return target


@pytest.mark.parametrize(("contender_name", "is_grouped"), [("CoarseCopy", 0), ("CoarseDevice", 0), ("CoarseCopy", 1)])
def test_sums_are_found_where_the_gradients_were_written(contender_name, is_grouped, monkeypatch):
    peer = OnePeer()
    monkeypatch.setitem(sys.modules, "coarse", peer)  # before the contender imports it, so that no MPI starts
    monkeypatch.delitem(sys.modules, "benchmarks.contenders.coarse_numpy", raising=False)
    coarse_numpy = importlib.import_module("benchmarks.contenders.coarse_numpy")
    contender = getattr(coarse_numpy, contender_name)()
    workload = replace(WORKLOAD, is_apart=True, is_grouped=True) if is_grouped else WORKLOAD
    tensors = contender.prepare(workload, np.ones(WORKLOAD.numel, dtype=np.float32))
    fill_pattern(tensors, 0)
    contender.run()
    assert wrong_tensors(tensors, 2) == []
    assert len(set(peer.names)) == 1  # two small tensors are fused, or come in one call
    del sys.modules["benchmarks.contenders.coarse_numpy"]
