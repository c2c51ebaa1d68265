"""The GPUs that this process uses: CUDA's by CuPy, unless a test has put others in their place."""

from coarse.errors import ConfigError
from coarse.storage.gpu.interface import Gpus

_chosen: list[Gpus] = []
"""At most one: what `gpus` gives."""


def gpus() -> Gpus:
    """The GPUs of this machine.

    Raises:
        ConfigError: CuPy is not installed, or CUDA finds no driver or no GPU.
    """
    if not _chosen:
        use(_cuda_gpus())
    return _chosen[0]


def gpus_if_any() -> Gpus | None:
    """The GPUs of this machine; None where `gpus` would raise ConfigError."""
    try:
        return gpus()
    except ConfigError:
        return None


def use(chosen: Gpus | None) -> None:
    """Have `gpus` give these from now on; None: look for CUDA's anew."""
    _chosen[:] = [] if chosen is None else [chosen]


def _cuda_gpus() -> Gpus:
    try:
        from coarse.storage.gpu.cupy_gpus import open_cuda
    except ImportError as error:
        raise ConfigError(
            f"GPUs need CuPy, which cannot be imported ({error}); pip install 'coarse[cuda]', or for CUDA 13 "
            "cupy-cuda13x in place of cupy-cuda12x"
        ) from None
    return open_cuda()
