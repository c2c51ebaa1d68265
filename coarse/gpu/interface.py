# Pure: no MPI, threads, clock or environment.
"""What coarse asks of GPUs. CUDA is behind it (cupy_gpus.py), and in tests a stand-in (tests/support/gpu_stand_in.py).

[Note: streams] What is given to a stream is done later, in its order. Only an event says that it is done: until then
nobody reads what it writes, and nobody writes what it reads. Two streams have no order, but for what one waits for.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np

from coarse.protocol.dtypes import DType, Op


class GpuArray(Protocol):
    """An array in a GPU's memory, as `cupy.ndarray` is one. numpy cannot read it."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def flags(self) -> Any: ...  # noqa: ANN401  numpy's and CuPy's have no type in common
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def view(self, dtype: np.dtype[Any], /) -> "GpuArray": ...
    def reshape(self, *shape: Any) -> "GpuArray": ...  # noqa: ANN401  as numpy's
    def __getitem__(self, index: slice, /) -> "GpuArray": ...


AnyArray = np.ndarray | GpuArray
"""On the host or on a GPU."""


class Arrays(Protocol):
    """Operations on arrays, by numpy or by CuPy. On a GPU they take their turn in a stream (see [Note: streams]).

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
    """A point of a stream."""

    def is_done(self) -> bool:
        """Whether all before it is done; returns at once. GpuError where something before it failed."""
        ...

    def wait(self) -> None:
        """Return once all before it is done; other threads run meanwhile. GpuError where something before it failed."""
        ...


class Stream(Protocol):
    """An order of operations on one GPU; see [Note: streams]."""

    @property
    def gpu(self) -> int: ...

    @property
    def arrays(self) -> Arrays:
        """Operations that take their turn in this stream."""
        ...

    def record(self) -> Event:
        """The point that the stream has come to once all that it was given is done."""
        ...

    def wait_for(self, event: Event) -> None:
        """Do what the stream is given from now on only after an event of another stream; returns at once."""
        ...


@dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """One GPU as a process sees it."""

    number: int
    """In this process; CUDA_VISIBLE_DEVICES decides it."""
    name: str
    bus_id: str
    """Such as "0000:3b:00.0"; the same in all processes of the machine."""
    total_bytes: int
    lack: str = ""
    """Why several processes cannot share its memory, and what to do; empty where they can."""

    def __str__(self) -> str:
        text = f"{self.number}: {self.name} at {self.bus_id}, {self.total_bytes / (1 << 30):.1f} GiB"
        return f"{text}; {self.lack}" if self.lack else text


DLPACK_OF_CUDA = (2, 13)
"""Kinds of devices that are CUDA's: kDLCUDA, kDLCUDAManaged."""
HANDLE_BYTES = 64
"""Of CUDA's handles for other processes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuOffer:
    """A memory device's allocation on a GPU, as it offers it to the other ranks of its node."""

    bus_id: str
    nbytes: int
    handle: bytes
    memory: GpuArray
    """(nbytes,) uint8, as the process that allocated it reaches it."""


class Gpus(Protocol):
    """The GPUs of this machine. GpuError says what CUDA refused, by the call and in CUDA's words."""

    def infos(self) -> tuple[GpuInfo, ...]:
        """All that this process sees, by number; none where there are none."""
        ...

    def free_bytes(self, gpu: int) -> int:
        """What is left of a GPU's memory; this process uses the GPU from then on."""
        ...

    def can_access(self, gpu: int, peer: int) -> bool:
        """Whether what runs on a GPU can read and write another one's memory; itself it always can."""
        ...

    def allocate(self, gpu: int, nbytes: int) -> GpuArray:
        """(nbytes,) uint8 of an allocation of its own, which `export` may name to other processes.

        Raises:
            CapacityError: the GPU has not that much left.
        """
        ...

    def export(self, memory: GpuArray) -> bytes:
        """A handle of what `allocate` gave, for `open` in other processes of this machine."""
        ...

    def open(self, handle: bytes, nbytes: int, gpu: int) -> GpuArray:
        """(nbytes,) uint8, another process's allocation, as what runs on `gpu` reaches it."""
        ...

    def close(self, memory: GpuArray) -> None:
        """Give back what `open` gave; nothing reads or writes it any more."""
        ...

    def stream(self, gpu: int) -> Stream:
        """A new stream, which waits for no other one unless it is told to."""
        ...

    def current_stream(self, gpu: int) -> Stream:
        """The stream in which this thread's user works on a GPU: that of `using`, else CuPy's."""
        ...

    def using(self, gpu: int, pointer: int) -> AbstractContextManager[None]:
        """Within, this thread's user works on a GPU in another library's stream, by its cudaStream_t."""
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
        """(nbytes,) uint8 of new host memory that is pinned; CapacityError where there is none."""
        ...

    def array_of(self, given: object) -> GpuArray:
        """The GPU array that an object of any library is, which is in a GPU's memory, without a copy: by
        `__cuda_array_interface__`, else by DLPack."""
        ...

    def gpu_of(self, array: GpuArray) -> int:
        """The GPU through which an array is reached."""
        ...

    def empty(self, gpu: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuArray:
        """A new array of whatever values, in memory that is not shared; CapacityError where there is no room."""
        ...


def is_on_gpu(array: object) -> TypeGuard[GpuArray]:
    """Whether something is an array in a GPU's memory."""
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def address_of(array: AnyArray) -> int:
    """Where an array's first element lies in this process's addresses."""
    face = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    address: int = face["data"][0]
    return address


_COMPUTE_MODES = {1: "exclusive mode", 2: "prohibited mode", 3: "exclusive process mode"}
"""cudaComputeMode; 0 is the default, in which any process may use a GPU."""
_EXCLUSIVE_PROCESS = 3


def lack_of_sharing(name: str, compute_mode: int, *, has_mps: bool) -> str:
    """Why processes cannot share a GPU's memory by handles, and what to do; empty if they can.

    `has_mps`: NVIDIA's Multi-Process Service runs, by which several use a GPU that is in exclusive process mode.
    """
    if " MIG " in f" {name} ":
        return "a part of a GPU in MIG mode, whose memory processes cannot share; switch MIG off (nvidia-smi -mig 0)"
    mode = _COMPUTE_MODES.get(compute_mode)
    if mode is None or (compute_mode == _EXCLUSIVE_PROCESS and has_mps):
        return ""
    return f"it is in {mode}, so that no two processes can use it; change that (nvidia-smi -c DEFAULT), or start MPS"
