"""Which tensors GPUs copy, and what is said where they cannot."""

import sys

import numpy as np
import pytest
import torch

from coarse.gpu.available import use
from coarse.protocol.dtypes import DType
from coarse.torch import on_gpu
from tests.support.gpu_stand_in import StandInGpus


@pytest.fixture
def gpus(monkeypatch):
    """A stand-in, on which every tensor is that lies in its memory."""
    chosen = StandInGpus(1)
    use(chosen)
    monkeypatch.setattr(on_gpu, "is_on_gpu", lambda tensor: chosen.gpu_at(tensor.data_ptr()) >= 0)
    monkeypatch.setattr(on_gpu, "_shared", lambda array: torch.from_numpy(array.values))
    yield chosen
    use(None)


def on_stand_in(gpus: StandInGpus, tensor: torch.Tensor) -> torch.Tensor:
    memory = gpus.array(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return torch.from_numpy(memory.values).view(tensor.dtype).view(tensor.shape)


def test_tensors_of_the_cpu_go_as_ever(gpus):
    assert not on_gpu.goes_by_gpu(torch.ones(3))
    with on_gpu.in_its_stream(torch.ones(3)):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_a_tensor_is_an_array_of_the_same_memory_and_back(gpus, dtype):
    tensor = on_stand_in(gpus, torch.arange(6).view(2, 3).to(dtype))
    assert on_gpu.goes_by_gpu(tensor)
    array = on_gpu.gpu_array_of(tensor)
    assert array.shape == (2, 3)
    assert array.dtype == (np.uint16 if dtype is torch.bfloat16 else torch.empty(0, dtype=dtype).numpy().dtype)
    wire = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16}
    back = on_gpu.tensor_on_gpu(array, wire.get(dtype, DType.INT64))
    assert back.dtype == dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)


def test_a_tensor_that_is_not_contiguous_is_copied_and_another_is_not(gpus):
    tensor = on_stand_in(gpus, torch.arange(6.0).view(2, 3))
    assert on_gpu.contiguous_on_gpu(tensor).data_ptr() == tensor.data_ptr()
    assert on_gpu.contiguous_on_gpu(tensor.t()).is_contiguous()
    assert torch.equal(on_gpu.contiguous_on_gpu(tensor.t()), tensor.t())


def test_without_cupy_tensors_on_a_gpu_take_the_host_s_way_and_a_warning_says_so_once(monkeypatch):
    monkeypatch.setattr(on_gpu, "is_on_gpu", lambda tensor: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "coarse.gpu.cupy_gpus", raising=False)
    on_gpu._warn_of_detour.cache_clear()
    use(None)
    with pytest.warns(RuntimeWarning, match=r"copied to the host and back .* pip install 'coarse-cxl\[cuda\]'"):
        assert not on_gpu.goes_by_gpu(torch.ones(3))
    assert not on_gpu.goes_by_gpu(torch.ones(3))
    with on_gpu.in_its_stream(torch.ones(3)):
        pass
    use(None)
