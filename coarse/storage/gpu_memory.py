"""Memory device whose keys' regions lie on a GPU, and all else that it keeps on the host.

[Note: two ranges] Offsets below `keys_begin` are the host file's, as of any memory device: state arrays, snapshots,
buffers of a node's collectives and the states of models in the network lie there. From `keys_begin` on they are the
GPU's: the regions of keys, which are added. So all other work on device memory works beside a GPU too.
"""

import contextlib
import warnings
from typing import cast

import numpy as np

from coarse.errors import CapacityError, ConfigError, GpuError
from coarse.gpu.available import gpus
from coarse.gpu.interface import GpuArray, GpuInfo, GpuOffer, address_of
from coarse.protocol import override
from coarse.storage.region import DeviceMemory, MemoryFile, PageSource, create_memory_file
from coarse.storage.room import total_bytes

_STEP_BYTES = 2 << 20
"""Unit in bytes in which CUDA takes a GPU's memory."""


class GpuDeviceMemory(DeviceMemory):
    """Bytes of one device as this process sees them: the host's, and the GPU's behind them.

    [Note: two ranges] has the details.
    """

    def __init__(
        self, descriptor: int, capacity_bytes: int, source: PageSource | None, on_gpu: GpuArray, *, is_direct: bool
    ) -> None:
        """Map the host's bytes; `on_gpu` are the GPU's bytes, as this process reaches them.

        DeviceMemory has the details. `is_direct`: kernels of this process on its own GPU may read and write them.
        """
        super().__init__(descriptor, capacity_bytes, source)
        self.keys_begin = capacity_bytes
        self.keys_bytes = on_gpu.nbytes
        self.is_direct = is_direct
        self.on_gpu = on_gpu

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """Return the bytes [offset, offset + nbytes).

        From `keys_begin` on they are a GpuArray, which has the same methods.
        """
        if offset < self.keys_begin:
            return super().view(offset, nbytes)
        begin = offset - self.keys_begin
        if begin + nbytes > self.keys_bytes:
            raise ValueError(f"a device of {self.keys_bytes} bytes on a GPU has no byte {begin + nbytes - 1}")
        return cast(np.ndarray, self.on_gpu[begin : begin + nbytes])

    @override
    def is_at(self, address: int, offset: int) -> bool:
        if offset < self.keys_begin:
            return super().is_at(address, offset)
        return address == address_of(self.on_gpu) + offset - self.keys_begin

    @override
    def has(self, address: int) -> bool:
        begin = address_of(self.on_gpu)
        return super().has(address) or begin <= address < begin + self.keys_bytes

    def reserve(self, offset: int, nbytes: int) -> str:
        """Make a range real; all of the GPU's bytes are there from the start."""
        return super().reserve(offset, nbytes) if offset < self.keys_begin else ""


class MappedGpuMemory(GpuDeviceMemory):
    """Memory of a device whose GPU bytes are another process's."""

    def close(self) -> None:
        """Give up the descriptor, and unmap the GPU's bytes; the owner keeps those until its process ends."""
        super().close()
        with contextlib.suppress(GpuError):  # CUDA may have ended before this process has
            gpus().close(self.on_gpu)


def create_on_gpu(number: int, name: str, wanted_bytes: int | None, num_sharers: int) -> MemoryFile:
    """Make a memory device on a GPU, of `wanted_bytes` or half of the GPU's over all that share it.

    Raises:
        ConfigError: there is no CUDA, no such GPU, or one that processes cannot share.
        CapacityError: the GPU has not that much left.
    """
    info = _require_gpu(number)
    nbytes = wanted_bytes
    if nbytes is None:
        nbytes = info.total_bytes // 2 // num_sharers // _STEP_BYTES * _STEP_BYTES
    free = gpus().free_bytes(number)
    try:
        if not 0 < nbytes <= free:
            raise CapacityError("asked before it was tried")
        memory = gpus().allocate(number, nbytes)
    except CapacityError as refused:
        raise CapacityError(
            f"{nbytes} bytes are wanted of GPU {number}, which has {free} of its {info.total_bytes} left ({refused}); "
            "lower device_capacity_bytes, or end what else uses the GPU"
        ) from None
    offer = GpuOffer(bus_id=info.bus_id, nbytes=nbytes, handle=gpus().export(memory), memory=memory)
    capacity_bytes = total_bytes()
    descriptor = create_memory_file(name, capacity_bytes)
    return MemoryFile(descriptor=descriptor, capacity_bytes=capacity_bytes, source=PageSource(), gpu=offer)


def own_memory(file: MemoryFile, descriptor: int) -> GpuDeviceMemory:
    """Return the memory of a device of this process."""
    assert file.gpu is not None
    return GpuDeviceMemory(descriptor, file.capacity_bytes, file.source, file.gpu.memory, is_direct=True)


def map_memory(
    device: int, descriptor: int, capacity_bytes: int, bus_id: str, nbytes: int, handle: bytes, own_bus_id: str | None
) -> MappedGpuMemory:
    """Map the memory of a device of another process, which has told its GPU and handle.

    `own_bus_id` is the GPU of this process's own memory device, on which it adds; None where it has none. A warning
    tells of a GPU that does not reach the other one.

    Raises:
        ConfigError: this process does not see that GPU.
        GpuError: CUDA does not map the memory here.
    """
    by_bus = {info.bus_id: info.number for info in gpus().infos()}
    if bus_id not in by_bus:
        raise ConfigError(
            f"the memory of memory device {device} is on the GPU {bus_id}, which this process does not see (it sees "
            f"{', '.join(by_bus) or 'none'}); let CUDA_VISIBLE_DEVICES name the same GPUs for all ranks of a node, and "
            "choose each worker's by torch.cuda.set_device"
        )
    gpu, is_direct = by_bus[bus_id], False
    if own_bus_id is not None:
        own = by_bus[own_bus_id]
        is_direct = gpus().can_access(own, gpu)
        if not is_direct:
            warnings.warn(
                f"GPU {own} at {own_bus_id} has no peer access to GPU {gpu} at {bus_id}: what it adds there goes "
                "through pinned host memory, which is slower; `coarse check` shows which GPUs reach one another",
                RuntimeWarning,
                stacklevel=2,
            )
        gpu = own if is_direct else gpu
    on_gpu = gpus().open(handle, nbytes, gpu)
    return MappedGpuMemory(descriptor, capacity_bytes, None, on_gpu, is_direct=is_direct)


def _require_gpu(number: int) -> GpuInfo:
    """Return a GPU whose memory processes may share.

    Raises:
        ConfigError: there is none of that number, or it cannot be shared; the error names those there are.
    """
    infos = gpus().infos()
    if number >= len(infos):
        there = ", ".join(f"{info.number} ({info.name})" for info in infos) or "none"
        raise ConfigError(
            f"this process sees no GPU {number} (it sees: {there}); name one of these, or let CUDA_VISIBLE_DEVICES "
            "show it; `coarse check` lists them"
        )
    if infos[number].lack:
        raise ConfigError(f"GPU {number} ({infos[number].name}) cannot be a memory device's: {infos[number].lack}")
    return infos[number]
