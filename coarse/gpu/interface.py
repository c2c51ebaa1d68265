# Pure: no MPI, threads, clock or environment.
"""Interface to GPUs, implemented by CUDA (cupy_gpus.py), and in tests by a stand-in.

The stand-in is tests/support/gpu_stand_in.py.

[Note: streams] Operations that are given to a stream are done later, in its order. Only an event says that they are
done: until then their results may not be read, and their operands not be written. Two streams have no order, except
that one may wait for an event of the other.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np

from coarse.protocol.dtypes import DType, Op


class GpuArray(Protocol):
    """Array in a GPU's memory, such as `cupy.ndarray`; numpy cannot read it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements of each dimension."""
        ...

    @property
    def size(self) -> int:
        """Number of elements."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        ...

    @property
    def flags(self) -> Any:  # noqa: ANN401  numpy's and CuPy's have no type in common
        """Flags of its memory layout, such as `c_contiguous`."""
        ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def view(self, dtype: np.dtype[Any], /) -> "GpuArray":
        """Return the same memory as an array of another type."""
        ...

    def reshape(self, *shape: Any) -> "GpuArray":  # noqa: ANN401  as numpy's
        """Return the same elements in another shape."""
        ...

    def __getitem__(self, index: slice, /) -> "GpuArray": ...


AnyArray = np.ndarray | GpuArray
"""Array on the host or on a GPU."""


class Arrays(Protocol):
    """Operations on arrays, by numpy or by CuPy; on a GPU they take their turn in a stream.

    [Note: streams] has the details.

    Arrays are contiguous; those of one call have equally many elements of one type, unless it says otherwise.
    """

    def copy(self, target: AnyArray, source: AnyArray) -> None:
        """Write the values of `source` into `target`; either may be on the host.

        Host memory that is not pinned has been read when this returns.
        """
        ...

    def zero(self, target: AnyArray) -> None:
        """Make all bytes of an array 0."""
        ...

    def reduce(
        self, sources: Sequence[AnyArray], targets: Sequence[AnyArray], dtype: DType, op: Op, divisor: int
    ) -> None:
        """Write op(sources) / divisor into every target, as `coarse.storage.reduce.reduce` does, to the bit."""
        ...

    def combine(self, sources: Sequence[AnyArray], target: AnyArray, dtype: DType, op: Op) -> None:
        """Write op(sources) into `target`, (n,) of the accumulator type; there is one source at least."""
        ...


class Event(Protocol):
    """Point of a stream."""

    def is_done(self) -> bool:
        """Return whether all before it is done; return at once.

        Raises:
            GpuError: something before it failed.
        """
        ...

    def wait(self) -> None:
        """Return once all before it is done; other threads run until then.

        Raises:
            GpuError: something before it failed.
        """
        ...


class Stream(Protocol):
    """Order of operations on one GPU; see [Note: streams]."""

    @property
    def gpu(self) -> int:
        """Number of the GPU."""
        ...

    @property
    def arrays(self) -> Arrays:
        """Operations that take their turn in this stream."""
        ...

    def record(self) -> Event:
        """Return an event that comes once all operations that the stream was given are done."""
        ...

    def wait_for(self, event: Event) -> None:
        """Have later operations of the stream wait for an event of another stream; return at once."""
        ...


@dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """Facts about one GPU as a process sees it."""

    number: int
    """Number in this process; CUDA_VISIBLE_DEVICES decides it."""
    name: str
    bus_id: str
    """PCI bus address, such as "0000:3b:00.0", which is the same in all processes of the machine."""
    total_bytes: int
    lack: str = ""
    """Reason why several processes cannot share its memory, and the remedy; empty where they can."""

    def __str__(self) -> str:
        text = f"{self.number}: {self.name} at {self.bus_id}, {self.total_bytes / (1 << 30):.1f} GiB"
        return f"{text}; {self.lack}" if self.lack else text


DLPACK_OF_CUDA = (2, 13)
"""Kinds of devices that are CUDA's: kDLCUDA, kDLCUDAManaged."""
HANDLE_BYTES = 64
"""Bytes of CUDA's handles for other processes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuOffer:
    """Allocation of a memory device on a GPU, as it offers it to the other ranks of its node."""

    bus_id: str
    nbytes: int
    handle: bytes
    memory: GpuArray
    """Memory of the allocation, (nbytes,) uint8, as the process that allocated it reaches it."""


class Gpus(Protocol):
    """GPUs of this machine; a GpuError has CUDA's refusal, by the call and in CUDA's words."""

    def infos(self) -> tuple[GpuInfo, ...]:
        """Return all GPUs that this process sees, by number; none where there are none."""
        ...

    def free_bytes(self, gpu: int) -> int:
        """Return the free bytes of a GPU's memory; this process uses the GPU from then on."""
        ...

    def can_access(self, gpu: int, peer: int) -> bool:
        """Return whether a GPU's kernels can read and write another one's memory; its own they always can."""
        ...

    def allocate(self, gpu: int, nbytes: int) -> GpuArray:
        """Return (nbytes,) uint8 of a separate allocation, which `export` may name to other processes.

        Raises:
            CapacityError: the GPU has not that much left.
        """
        ...

    def export(self, memory: GpuArray) -> bytes:
        """Return a handle of memory from `allocate`, for `open` in other processes of this machine."""
        ...

    def open(self, handle: bytes, nbytes: int, gpu: int) -> GpuArray:
        """Return another process's allocation, (nbytes,) uint8, as kernels on `gpu` reach it."""
        ...

    def close(self, memory: GpuArray) -> None:
        """Give back memory from `open`, which is not read or written any more."""
        ...

    def stream(self, gpu: int) -> Stream:
        """Return a new stream, which waits for no other one unless it is told to."""
        ...

    def current_stream(self, gpu: int) -> Stream:
        """Return the stream in which this thread's user works on a GPU: that of `using`, else CuPy's."""
        ...

    def using(self, gpu: int, pointer: int) -> AbstractContextManager[None]:
        """Have this thread's user work on a GPU in another library's stream, within the context.

        The stream is given by its cudaStream_t.
        """
        ...

    def pin(self, array: np.ndarray) -> None:
        """Lock the pages of contiguous host memory, so that GPUs copy to and from it by themselves.

        Raises:
            CapacityError: CUDA refuses, as it does above the limit of locked memory.
        """
        ...

    def unpin(self, array: np.ndarray) -> None:
        """Undo `pin`, by the same array."""
        ...

    def pinned(self, nbytes: int) -> np.ndarray:
        """Return new pinned host memory, (nbytes,) uint8.

        Raises:
            CapacityError: there is none.
        """
        ...

    def array_of(self, given: object) -> GpuArray:
        """Return the GPU array that an object of any library in a GPU's memory is, without a copy.

        It is taken by `__cuda_array_interface__`, else by DLPack.
        """
        ...

    def gpu_of(self, array: GpuArray) -> int:
        """Return the GPU through which an array is reached."""
        ...

    def empty(self, gpu: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuArray:
        """Return a new uninitialised array in memory that is not shared.

        Raises:
            CapacityError: there is no room.
        """
        ...


def is_on_gpu(array: object) -> TypeGuard[GpuArray]:
    """Return whether an object is an array in a GPU's memory."""
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def address_of(array: AnyArray) -> int:
    """Return the address of an array's first element in this process."""
    face = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    address: int = face["data"][0]
    return address


_COMPUTE_MODES = {1: "exclusive mode", 2: "prohibited mode", 3: "exclusive process mode"}
"""Names of cudaComputeMode; 0 is the default, in which any process may use a GPU."""
_EXCLUSIVE_PROCESS = 3


def lack_of_sharing(name: str, compute_mode: int, *, has_mps: bool) -> str:
    """Return the reason why processes cannot share a GPU's memory by handles, and the remedy, or "".

    `has_mps`: NVIDIA's Multi-Process Service runs, by which several use a GPU that is in exclusive process mode.
    """
    if " MIG " in f" {name} ":
        return "a part of a GPU in MIG mode, whose memory processes cannot share; switch MIG off (nvidia-smi -mig 0)"
    mode = _COMPUTE_MODES.get(compute_mode)
    if mode is None or (compute_mode == _EXCLUSIVE_PROCESS and has_mps):
        return ""
    return f"it is in {mode}, so that no two processes can use it; change that (nvidia-smi -c DEFAULT), or start MPS"
