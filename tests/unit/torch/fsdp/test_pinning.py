"""Pinning of host memory, with a CUDA runtime that is told what to answer."""

import numpy as np
import pytest

from coarse.errors import CapacityError
from coarse.torch.fsdp.transfers import PinnedMemory, pin_where_cuda_is


class ToldRuntime:
    """Answers with a status, and notes what is registered."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if not self.status:
            self.registered[address] = nbytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def test_memory_is_registered_until_it_is_released():
    runtime, array = ToldRuntime(), np.zeros(100, np.float32)
    pinned = PinnedMemory(array, runtime)
    assert runtime.registered == {array.ctypes.data: 400}
    pinned.release()
    assert not runtime.registered


def test_a_refusal_names_the_bytes_and_the_remedy():
    with pytest.raises(CapacityError, match=r"400 bytes .*error 2.*ulimit -l"):
        PinnedMemory(np.zeros(100, np.float32), ToldRuntime(status=2))


def test_without_cuda_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert pin_where_cuda_is(np.zeros(1)) is None
