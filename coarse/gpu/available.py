"""GPUs that this process uses: CUDA's by CuPy, unless a test has put others in their place."""

from typing import cast

import numpy as np

from coarse.errors import ConfigError
from coarse.gpu.interface import DLPACK_OF_CUDA, AnyArray, GpuArray, Gpus, is_on_gpu
from coarse.protocol.distribution import how_to_install

_found: list[Gpus | ConfigError] = []
"""Result of `gpus`, or the error that it raises; at most one."""


def gpus() -> Gpus:
    """Return the GPUs of this machine.

    Raises:
        ConfigError: CuPy is not installed, or CUDA finds no driver or no GPU.
    """
    if not _found:
        try:
            use(_cuda_gpus())
        except ConfigError as refused:
            _found[:] = [refused]
    found = _found[0]
    if isinstance(found, ConfigError):
        raise found
    return found


def gpus_if_any() -> Gpus | None:
    """Return the GPUs of this machine; None where `gpus` would raise ConfigError."""
    try:
        return gpus()
    except ConfigError:
        return None


def gpu_array_of(given: object) -> GpuArray | None:
    """Return the GPU array that an object of any library is, without a copy.

    None: it is in no GPU's memory.

    Raises:
        ConfigError: it is in a GPU's memory, and there is no CuPy.
    """
    return gpus().array_of(given) if is_on_gpu(given) or _is_on_gpu_by_dlpack(given) else None


def empty_like(array: AnyArray) -> np.ndarray:
    """Return a new uninitialised array of the same shape and type, on another's GPU or on the host."""
    if is_on_gpu(array):
        return cast(np.ndarray, gpus().empty(gpus().gpu_of(array), array.shape, array.dtype))
    return np.empty_like(array)


def _is_on_gpu_by_dlpack(given: object) -> bool:
    device_of = getattr(given, "__dlpack_device__", None)
    return not isinstance(given, np.ndarray) and device_of is not None and device_of()[0] in DLPACK_OF_CUDA


def use(chosen: Gpus | None) -> None:
    """Have `gpus` give these from now on; None: look for CUDA's anew."""
    _found[:] = [] if chosen is None else [chosen]


def _cuda_gpus() -> Gpus:
    try:
        from coarse.gpu.cupy_gpus import open_cuda
    except ImportError as error:
        raise ConfigError(
            f"GPUs need CuPy, which cannot be imported ({error}); {how_to_install('cuda')}, or for CUDA 13 "
            "cupy-cuda13x in place of cupy-cuda12x"
        ) from None
    return open_cuda()
