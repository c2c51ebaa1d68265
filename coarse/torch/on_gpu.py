"""Torch tensors on GPUs as arrays that the client pushes, in torch's own streams; see docs/gpu.md."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import cast

import numpy as np
import torch

from coarse.gpu.available import gpus, gpus_if_any
from coarse.gpu.interface import GpuArray
from coarse.gpu.interface import is_on_gpu as is_array_on_gpu
from coarse.protocol.distribution import how_to_install
from coarse.protocol.dtypes import DType


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in a CUDA device's memory."""
    return tensor.device.type == "cuda"


def goes_by_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a GPU copies a tensor to devices and back.

    It does for a tensor that is on a GPU, where CuPy is there too.
    """
    if not is_on_gpu(tensor):
        return False
    if gpus_if_any() is None:
        _warn_of_detour()
        return False
    return True


@cache
def _warn_of_detour() -> None:
    warnings.warn(
        "tensors on GPUs are copied to the host and back while everything waits, for coarse finds no CuPy; "
        f"{how_to_install('cuda')}",
        RuntimeWarning,
        stacklevel=4,
    )


def gpu_array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a contiguous tensor on a GPU as a CuPy array of its shape.

    Tensors of bfloat16 become uint16, as numpy has it.
    """
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        return cast(np.ndarray, gpus().array_of(plain.view(torch.int16)).view(np.dtype(np.uint16)))
    return cast(np.ndarray, gpus().array_of(plain))


def gpu_bytes_of(tensor: torch.Tensor) -> GpuArray:
    """Return the memory of a contiguous tensor of any type on a GPU, (nbytes,) uint8.

    The tensor has an element at least.
    """
    return gpus().array_of(tensor.detach().reshape(-1).view(torch.uint8))


def tensor_on_gpu(array: np.ndarray, wire: int) -> torch.Tensor:
    """Return a GPU array of a wire type's storage as a tensor, which keeps its memory alive."""
    is_bfloat16 = DType(wire) is DType.BFLOAT16
    tensor = _shared(array.view(np.int16) if is_bfloat16 else array)  # torch takes no uint16 from others
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def contiguous_on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its elements lie in order, else a copy of its values on its GPU."""
    return _contiguous(tensor.detach().resolve_conj().resolve_neg())


def new_on_gpu(like: torch.Tensor) -> torch.Tensor:
    """Return a new uninitialised contiguous tensor of the same shape and type on the same GPU."""
    return _empty(like.shape, like.dtype, like)


def zeros_on_gpu(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a new tensor of zeros on the GPU of another."""
    return _empty(shape, dtype, like).zero_()


def gpu_of(tensor: torch.Tensor) -> int:
    """Return the number of the GPU that a tensor is on."""
    return _gpu_of(tensor)


def empty_on(device: torch.device, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new uninitialised tensor on a device."""
    return _empty_on(device, tuple(size), dtype)


def empty_beside(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new uninitialised contiguous tensor on the device of another."""
    if is_on_gpu(like):
        return _empty(tuple(shape), dtype, like)
    return torch.empty(tuple(shape), dtype=dtype, device=like.device)


def is_host(device: torch.device) -> bool:
    """Return whether numpy reads the memory of a device's tensors."""
    return _is_host(device)


def in_its_stream(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Have this thread work with a GPU's tensor in torch's current stream, within the context.

    For any other tensor nothing changes.
    """
    return _in_torch_stream(tensor) if is_on_gpu(tensor) and gpus_if_any() is not None else nullcontext()


def use_in_this_stream(tensor: torch.Tensor) -> None:
    """Tell torch that this thread's stream uses a tensor that another thread has made.

    Its memory is freed after the stream's work with it.
    """
    if is_on_gpu(tensor) and tensor.layout is torch.strided and gpus_if_any() is not None:
        _record_use(tensor)


# --- what is torch's own of CUDA


def _empty_on(device: torch.device, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _gpu_of(tensor: torch.Tensor) -> int:
    index: int = tensor.device.index
    return index


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _in_torch_stream(tensor: torch.Tensor) -> AbstractContextManager[None]:
    stream = torch.cuda.current_stream(tensor.device)
    return gpus().using(stream.device_index, stream.cuda_stream)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def _record_use(tensor: torch.Tensor) -> None:
    tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _shared(array: np.ndarray) -> torch.Tensor:
    assert is_array_on_gpu(array)
    return torch.as_tensor(array, device=torch.device("cuda", gpus().gpu_of(array)))
