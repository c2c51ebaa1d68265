"""Host memory that a CUDA device copies directly, without a copy by the driver in between: page-locked.

Never tried on a device: there was no GPU to try it on.
"""

from typing import Any

import numpy as np
import torch

from coarse.errors import CapacityError


class PinnedMemory:
    """Mapped memory that is registered with CUDA until it is released."""

    def __init__(self, array: np.ndarray, cudart: Any) -> None:  # noqa: ANN401  torch gives it no type
        """Register the bytes of `array`, any dtype, contiguous.

        Raises:
            CapacityError: CUDA refuses, as it does above the limit of locked memory.
        """
        self._address = array.ctypes.data
        self._cudart = cudart
        status = int(cudart.cudaHostRegister(self._address, array.nbytes, 0))
        if status:
            raise CapacityError(
                f"CUDA refused to pin {array.nbytes} bytes of host memory (error {status}); raise the limit of locked "
                "memory (ulimit -l), or shard over more nodes"
            )

    def release(self) -> None:
        """Let the memory be swapped and unmapped again; before it is given back."""
        self._cudart.cudaHostUnregister(self._address)


def pin_where_cuda_is(array: np.ndarray) -> PinnedMemory | None:
    """The memory of `array`, pinned; None where no CUDA device would profit."""
    return PinnedMemory(array, torch.cuda.cudart()) if torch.cuda.is_available() else None
