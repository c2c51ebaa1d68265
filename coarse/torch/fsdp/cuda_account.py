"""The memory of a CUDA device, as torch's allocator counts it. Never tried: there was no GPU to try it on."""

from typing import Protocol

import torch

from coarse.errors import ConfigError
from coarse.torch.fsdp.account import DeviceAccount


class Allocator(Protocol):
    """What an allocator tells about one device, in bytes."""

    def allocated_bytes(self) -> int:
        """In tensors now."""

    def peak_bytes(self) -> int:
        """In tensors at most, since the start or `restart_peak`."""

    def free_bytes(self) -> int:
        """What tensors can still be given: the device's free memory, and what the allocator keeps for itself."""

    def restart_peak(self) -> None:
        """Let the peak count from now."""


class CudaAllocator:
    """torch's caching allocator on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def free_bytes(self) -> int:
        kept_bytes = torch.cuda.memory_reserved(self._device) - self.allocated_bytes()
        return torch.cuda.mem_get_info(self._device)[0] + kept_bytes

    def restart_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)


class AllocatorAccount(DeviceAccount):
    """A device whose allocator says what is in use; only the division into kinds is counted here."""

    def __init__(self, allocator: Allocator, *, rank: int | None = None) -> None:
        super().__init__(rank=rank)
        self._allocator = allocator

    def take(self, kind: str, nbytes: int) -> None:
        """Count `nbytes` as of a kind; the allocator has given them already, or has raised its own error."""
        with self._lock:
            self._settle()
            self._ledger.take(kind, nbytes)

    def empty(self, numel: int, *, dtype: torch.dtype, device: torch.device, kind: str) -> torch.Tensor:
        """A new tensor (numel,) held as `kind`; reclaimers are asked first, OutOfDeviceMemoryError where it fails."""
        nbytes = numel * dtype.itemsize
        self._reclaim(nbytes)
        try:
            return self.hold(torch.empty(numel, dtype=dtype, device=device), kind)
        except torch.OutOfMemoryError as error:
            raise self._out_of_memory(kind, nbytes) from error

    @property
    def used_bytes(self) -> int:
        """Bytes in tensors now, whoever made them."""
        return self._allocator.allocated_bytes()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in tensors at one moment."""
        return self._allocator.peak_bytes()

    @property
    def capacity_bytes(self) -> int:
        """Bytes that tensors of this process can have now: what other processes leave."""
        return self._allocator.allocated_bytes() + self._allocator.free_bytes()

    def restart_peaks(self) -> None:
        """Let peaks count from what is in use now."""
        super().restart_peaks()
        self._allocator.restart_peak()


def account_on(device: torch.device, *, capacity_bytes: int | None = None, rank: int | None = None) -> DeviceAccount:
    """The account of the device that parameters are on: CUDA's own, else an emulated one of `capacity_bytes`."""
    if device.type != "cuda":
        return DeviceAccount(capacity_bytes, rank=rank)
    if capacity_bytes is not None:
        raise ConfigError(
            f"{device} has a capacity of its own, but {capacity_bytes} bytes were asked for; leave capacity_bytes out, "
            "or limit the allocator with torch.cuda.set_per_process_memory_fraction",
            key="capacity_bytes",
        )
    return AllocatorAccount(CudaAllocator(device), rank=rank)
