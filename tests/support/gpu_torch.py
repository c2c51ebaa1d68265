"""Torch tensors on a GPU: on CUDA's, or where a stand-in takes its place, tensors of the CPU in the stand-in's memory.

Torch computes on them at once. So whatever the stand-in's streams are to do before torch goes on is done when torch's
stream is left: what a copy does to a tensor is seen, and what it should not have done yet is too.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

import coarse
from coarse.gpu.available import gpus
from coarse.torch import on_gpu
from tests.support.gpu_stand_in import StandInArray, StandInGpus


def is_stand_in() -> bool:
    """Whether there is no CUDA, but a stand-in."""
    return isinstance(gpus(), StandInGpus)


def stand_in_for_cuda() -> None:
    """From now on, tensors that `cuda` has made are on a GPU; nothing changes where there is CUDA."""
    if not is_stand_in():
        return
    on_gpu.is_on_gpu = lambda tensor: _stand_in().gpu_at(tensor.data_ptr()) >= 0
    on_gpu._gpu_of = lambda tensor: _stand_in().gpu_at(tensor.data_ptr())
    on_gpu._in_torch_stream = _in_torch_stream
    on_gpu._empty = lambda shape, dtype, like: _empty(shape, dtype, _stand_in().gpu_at(like.data_ptr()))
    on_gpu._contiguous = _contiguous
    on_gpu._record_use = lambda tensor: None
    on_gpu._shared = lambda array: torch.from_numpy(array.values)


@contextlib.contextmanager
def collectives_on_gpu() -> Iterator[None]:
    """Within, what FSDP2 makes for its collectives is on a GPU: on a stand-in, the one part of a sharded model that is;
    on CUDA's GPUs all of it is there, and nothing changes."""
    if not is_stand_in():
        yield
        return
    kept = on_gpu._empty_on, on_gpu._is_host
    on_gpu._empty_on = lambda _device, size, dtype: _empty(size, dtype)
    on_gpu._is_host = lambda _device: False
    try:
        yield
    finally:
        on_gpu._empty_on, on_gpu._is_host = kept


def start(*, is_deterministic: bool = True) -> None:
    """What a program of claims does first: join the job, on this worker's GPU."""
    torch.set_num_threads(1)
    coarse.init()
    if not is_stand_in():
        torch.use_deterministic_algorithms(is_deterministic)
        torch.cuda.set_device(coarse.local_rank() % torch.cuda.device_count())
    stand_in_for_cuda()


def num_gpus() -> int:
    """How many GPUs there are."""
    return len(gpus().infos())


def cuda(tensor: torch.Tensor, gpu: int | None = None) -> torch.Tensor:
    """A copy of a tensor on a GPU, a parameter of one, as `.cuda()` makes it."""
    if not is_stand_in():
        moved = tensor.detach().cuda(gpu)
        return torch.nn.Parameter(moved) if isinstance(tensor, torch.nn.Parameter) else moved
    made = _empty(tuple(tensor.shape), tensor.dtype, gpu or 0)
    made.copy_(tensor.detach())
    return torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made


def to_cuda(module: torch.nn.Module, gpu: int | None = None) -> torch.nn.Module:
    """A module whose parameters and buffers are on a GPU, as `module.cuda()` makes it."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, cuda(parameter, gpu))
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, cuda(buffer, gpu))
    return module


def _stand_in() -> StandInGpus:
    found = gpus()
    assert isinstance(found, StandInGpus)
    return found


def _empty(shape: tuple[int, ...], dtype: torch.dtype, gpu: int = 0) -> torch.Tensor:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory: StandInArray = _stand_in().empty(max(gpu, 0), (max(nbytes, 8),), np.dtype(np.uint8))
    return torch.from_numpy(memory.values[:nbytes]).view(dtype).view(shape)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """What torch makes on the way is in the host's memory here; a tensor that is contiguous is on its GPU."""
    if tensor.is_contiguous():
        return tensor
    made = _empty(tuple(tensor.shape), tensor.dtype, _stand_in().gpu_at(tensor.data_ptr()))
    made.copy_(tensor)
    return made


@contextlib.contextmanager
def _in_torch_stream(tensor: torch.Tensor) -> Iterator[None]:
    stand_in = _stand_in()
    gpu = stand_in.gpu_at(tensor.data_ptr())
    stream = stand_in.users_stream(gpu)
    with stand_in.using(gpu, stand_in.pointer_of(stream)):
        try:
            yield
        finally:
            stream.record().wait()
