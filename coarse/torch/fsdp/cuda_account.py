"""Memory of a CUDA device, as torch's allocator counts it; never tried, as there was no GPU for it."""

from typing import Protocol

import torch

from coarse.errors import ConfigError
from coarse.torch.fsdp.account import DeviceAccount


class Allocator(Protocol):
    """Allocator's numbers about one device, in bytes."""

    def allocated_bytes(self) -> int:
        """Return the bytes in tensors now."""

    def peak_bytes(self) -> int:
        """Return the most bytes in tensors at one moment, since the start or `restart_peak`."""

    def free_bytes(self) -> int:
        """Return the bytes that tensors can still get: the device's free memory, and the allocator's reserve."""

    def restart_peak(self) -> None:
        """Let the peak count from now."""


class CudaAllocator:
    """Caching allocator of torch on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated_bytes(self) -> int:
        """Return the bytes in tensors now."""
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        """Return the most bytes in tensors at one moment."""
        return torch.cuda.max_memory_allocated(self._device)

    def free_bytes(self) -> int:
        """Return the device's free memory, and the unused part of the allocator's."""
        kept_bytes = torch.cuda.memory_reserved(self._device) - self.allocated_bytes()
        return torch.cuda.mem_get_info(self._device)[0] + kept_bytes

    def restart_peak(self) -> None:
        """Let the peak count from now."""
        torch.cuda.reset_peak_memory_stats(self._device)


class AllocatorAccount(DeviceAccount):
    """Account of a device whose allocator counts the bytes in use; only the kinds are counted here."""

    def __init__(self, allocator: Allocator, *, rank: int | None = None) -> None:
        super().__init__(rank=rank)
        self._allocator = allocator

    def take(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` as of a kind; the allocator has given them already, or has raised its own error."""
        with self._lock:
            self._settle()
            self._ledger.take(kind, nbytes)

    def empty(self, numel: int, *, dtype: torch.dtype, device: torch.device, kind: str) -> torch.Tensor:
        """Return a new tensor (numel,) held as `kind`; reclaimers are called first.

        Raises:
            OutOfDeviceMemoryError: the allocation fails.
        """
        nbytes = numel * dtype.itemsize
        self._reclaim(nbytes)
        try:
            return self.hold(torch.empty(numel, dtype=dtype, device=device), kind)
        except torch.OutOfMemoryError as error:
            raise self._out_of_memory(kind, nbytes) from error

    @property
    def used_bytes(self) -> int:
        """Bytes in tensors now, made by any code."""
        return self._allocator.allocated_bytes()

    @property
    def peak_bytes(self) -> int:
        """Most bytes in tensors at one moment."""
        return self._allocator.peak_bytes()

    @property
    def capacity_bytes(self) -> int:
        """Bytes that tensors of this process can have now, beside those of other processes."""
        return self._allocator.allocated_bytes() + self._allocator.free_bytes()

    def restart_peaks(self) -> None:
        """Let peaks count from the bytes in use now."""
        super().restart_peaks()
        self._allocator.restart_peak()


def account_on(device: torch.device, *, capacity_bytes: int | None = None, rank: int | None = None) -> DeviceAccount:
    """Return the account of the parameters' device: CUDA's own, else an emulated one of `capacity_bytes`."""
    if device.type != "cuda":
        return DeviceAccount(capacity_bytes, rank=rank)
    if capacity_bytes is not None:
        raise ConfigError(
            f"{device} has a capacity of its own, but {capacity_bytes} bytes were asked for; leave capacity_bytes out, "
            "or limit the allocator with torch.cuda.set_per_process_memory_fraction",
            key="capacity_bytes",
        )
    return AllocatorAccount(CudaAllocator(device), rank=rank)
