"""GPUs of CUDA, by CuPy; this file is imported only where there is a GPU to use."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import cupy
import numpy as np
from cupy.cuda import runtime

from coarse.errors import CapacityError, ConfigError, GpuError
from coarse.gpu.interface import AnyArray, Event, GpuArray, GpuInfo, address_of, is_on_gpu, lack_of_sharing
from coarse.gpu.kernels import NAME, OPTIONS, fold_source
from coarse.protocol.dtypes import DType, Op

_SUCCESS, _OUT_OF_MEMORY, _NOT_READY = 0, 2, 600
"""Values of cudaError_t: cudaSuccess, cudaErrorMemoryAllocation, cudaErrorNotReady."""
_COMPUTE_MODE = 20
"""Value of cudaDevAttrComputeMode."""
_THREADS = 256
_BLOCKS_OF_PROCESSOR = 8


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Raise GpuError, or CapacityError where memory is short, for CUDA's refusals within the context."""
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise CapacityError(f"{what}: {error}") from None
    except (runtime.CUDARuntimeError, cupy.cuda.compiler.CompileException) as error:
        kind = CapacityError if getattr(error, "status", 0) == _OUT_OF_MEMORY else GpuError
        raise kind(f"{what}: {error}") from None


def open_cuda() -> "CupyGpus":
    """Return the GPUs that CUDA finds.

    Raises:
        ConfigError: there is no driver, or no GPU.
    """
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise ConfigError(
            f"CUDA finds no GPU here ({error}); see whether nvidia-smi lists one, whether CUDA_VISIBLE_DEVICES hides "
            "it, and in a container whether it was started with --gpus"
        ) from None
    if not count:
        raise ConfigError("CUDA finds no GPU here; see whether CUDA_VISIBLE_DEVICES hides them")
    return CupyGpus(count)


class CupyEvent:
    """Event of CUDA; see Event."""

    def __init__(self, stream: Any, gpu: int) -> None:  # noqa: ANN401  CuPy is not typed
        with cupy.cuda.Device(gpu):
            self._event = cupy.cuda.Event(block=True, disable_timing=True)
            self._event.record(stream)

    @property
    def event(self) -> Any:  # noqa: ANN401  CuPy is not typed
        """Event object of CuPy."""
        return self._event

    def is_done(self) -> bool:
        """Return whether all before it is done.

        CuPy's `done` takes an error for an event that is still to come.

        Raises:
            GpuError: something before it failed.
        """
        status = runtime.eventQuery(self._event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise GpuError(f"what a GPU was given has failed: {runtime.CUDARuntimeError(status)}")
        return bool(status == _SUCCESS)

    def wait(self) -> None:
        """Return once all before it is done.

        Raises:
            GpuError: something before it failed.
        """
        with _refusals("what a GPU was given has failed"):
            self._event.synchronize()


class CupyStream:
    """Stream of CUDA, which is also the Arrays whose operations take their turn in it."""

    def __init__(self, gpu: int, stream: Any) -> None:  # noqa: ANN401  CuPy is not typed
        self.gpu = gpu
        self._stream = stream

    @property
    def arrays(self) -> "CupyStream":
        """Operations that take their turn in this stream."""
        return self

    def record(self) -> CupyEvent:
        """Return an event for the operations that the stream was given."""
        with _refusals("recording an event"):
            return CupyEvent(self._stream, self.gpu)

    def wait_for(self, event: Event) -> None:
        """Have later operations wait for an event of another stream."""
        assert isinstance(event, CupyEvent)
        with _refusals("waiting for an event"), cupy.cuda.Device(self.gpu):
            self._stream.wait_event(event.event)

    def copy(self, target: AnyArray, source: AnyArray) -> None:
        """Copy `source` into `target`; CUDA finds the place of each, and the way between two GPUs."""
        assert target.nbytes == source.nbytes
        assert target.flags.c_contiguous
        assert source.flags.c_contiguous
        if target.nbytes:
            with _refusals(f"copying {target.nbytes} bytes"), cupy.cuda.Device(self.gpu):
                runtime.memcpyAsync(
                    address_of(target), address_of(source), target.nbytes, runtime.memcpyDefault, self._stream.ptr
                )

    def zero(self, target: AnyArray) -> None:
        """Make all bytes of an array 0."""
        if target.nbytes:
            with _refusals(f"zeroing {target.nbytes} bytes"), cupy.cuda.Device(self.gpu):
                runtime.memsetAsync(address_of(target), 0, target.nbytes, self._stream.ptr)

    def reduce(
        self, sources: Sequence[AnyArray], targets: Sequence[AnyArray], dtype: DType, op: Op, divisor: int
    ) -> None:
        """Write op(sources) / divisor into every target."""
        if not sources:
            for target in targets:
                self.zero(target)
        elif len(sources) == 1 and divisor == 1:
            for target in targets:
                if address_of(target) != address_of(sources[0]):
                    self.copy(target, sources[0])
        elif targets:
            self._fold(sources, targets, dtype, op, divisor, widens=False)

    def combine(self, sources: Sequence[AnyArray], target: AnyArray, dtype: DType, op: Op) -> None:
        """Write op(sources) into `target`, of the accumulator type."""
        self._fold(sources, [target], dtype, op, 1, widens=True)

    def _fold(
        self,
        sources: Sequence[AnyArray],
        targets: Sequence[AnyArray],
        dtype: DType,
        op: Op,
        divisor: int,
        *,
        widens: bool,
    ) -> None:
        num_elements = sources[0].size
        if not num_elements:
            return
        source = fold_source(dtype, op, len(sources), len(targets), divisor, widens=widens)
        num_blocks = min(-(-num_elements // _THREADS), _BLOCKS_OF_PROCESSOR * _num_processors(self.gpu))
        with _refusals(f"adding {len(sources)} arrays"), cupy.cuda.Device(self.gpu), self._stream:
            _kernel(source, self.gpu)((num_blocks,), (_THREADS,), (*sources, *targets, np.int64(num_elements)))


class CupyGpus:
    """GPUs that CUDA finds; see Gpus."""

    def __init__(self, count: int) -> None:
        self._count = count

    def infos(self) -> tuple[GpuInfo, ...]:
        """Return all GPUs that this process sees."""
        with _refusals("asking for the GPUs' properties"):
            return tuple(_info(number) for number in range(self._count))

    def free_bytes(self, gpu: int) -> int:
        """Return the free bytes of a GPU's memory."""
        with _refusals(f"asking GPU {gpu} for its free memory"), cupy.cuda.Device(gpu):
            free: int = runtime.memGetInfo()[0]
            return free

    def can_access(self, gpu: int, peer: int) -> bool:
        """Return whether a GPU's kernels can read and write another one's memory."""
        with _refusals(f"asking whether GPU {gpu} reaches GPU {peer}"):
            return gpu == peer or bool(runtime.deviceCanAccessPeer(gpu, peer))

    def allocate(self, gpu: int, nbytes: int) -> GpuArray:
        """Allocate (nbytes,) uint8 by cudaMalloc itself.

        A handle of memory from CuPy's pool would name all of the pool's.
        """
        with _refusals(f"allocating {nbytes} bytes on GPU {gpu}"), cupy.cuda.Device(gpu):
            memory = cupy.cuda.Memory(nbytes)
        return _bytes_of(memory, nbytes)

    def export(self, memory: GpuArray) -> bytes:
        """Return a handle of allocated memory for other processes."""
        with _refusals("making a handle of GPU memory"), cupy.cuda.Device(self.gpu_of(memory)):
            handle: bytes = runtime.ipcGetMemHandle(address_of(memory))
            return handle

    def open(self, handle: bytes, nbytes: int, gpu: int) -> GpuArray:
        """Map another process's allocation, (nbytes,) uint8.

        Where the memory is another GPU's, CUDA lets `gpu` reach it as a peer.
        """
        with _refusals("mapping another process's GPU memory"), cupy.cuda.Device(gpu):
            pointer = runtime.ipcOpenMemHandle(handle, runtime.cudaIpcMemLazyEnablePeerAccess)
        return _bytes_of(cupy.cuda.UnownedMemory(pointer, nbytes, self, gpu), nbytes)

    def close(self, memory: GpuArray) -> None:
        """Unmap another process's allocation."""
        with _refusals("unmapping another process's GPU memory"), cupy.cuda.Device(self.gpu_of(memory)):
            runtime.ipcCloseMemHandle(address_of(memory))

    def stream(self, gpu: int) -> CupyStream:
        """Return a new stream that waits for no other one."""
        with _refusals(f"making a stream of GPU {gpu}"), cupy.cuda.Device(gpu):
            return CupyStream(gpu, cupy.cuda.Stream(non_blocking=True))

    def current_stream(self, gpu: int) -> CupyStream:
        """Return the stream in which this thread's user works on a GPU."""
        with cupy.cuda.Device(gpu):
            return CupyStream(gpu, cupy.cuda.get_current_stream())

    @contextmanager
    def using(self, gpu: int, pointer: int) -> Iterator[None]:
        """Have this thread's user work in another library's stream, within the context."""
        with cupy.cuda.Device(gpu), _stream_at(pointer, gpu):
            yield

    def pin(self, array: np.ndarray) -> None:
        """Lock the pages of contiguous host memory."""
        with _refusals(f"pinning {array.nbytes} bytes of host memory (ulimit -l limits it)"):
            runtime.hostRegister(address_of(array), array.nbytes, 0)

    def unpin(self, array: np.ndarray) -> None:
        """Unlock the pages of an array."""
        with _refusals("unpinning host memory"):
            runtime.hostUnregister(address_of(array))

    def pinned(self, nbytes: int) -> np.ndarray:
        """Return new pinned host memory, (nbytes,) uint8."""
        with _refusals(f"allocating {nbytes} bytes of pinned host memory"):
            return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def array_of(self, given: object) -> GpuArray:
        """Return the GPU array that an object of any library is.

        CuPy would copy one that is not on the GPU that this thread has chosen.
        """
        if isinstance(given, cupy.ndarray):
            return cast(GpuArray, given)
        if is_on_gpu(given):
            with _refusals("taking another library's array"), cupy.cuda.Device(_device_at(address_of(given))):
                found: GpuArray = cupy.asarray(given)
                return found
        taken: GpuArray = cupy.from_dlpack(given)
        return taken

    def gpu_of(self, array: GpuArray) -> int:
        """Return the GPU through which an array is reached."""
        number: int = array.device.id  # type: ignore[attr-defined]
        return number

    def empty(self, gpu: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuArray:
        """Return a new uninitialised array on a GPU."""
        with _refusals(f"allocating an array on GPU {gpu}"), cupy.cuda.Device(gpu):
            array: GpuArray = cupy.empty(shape, dtype)
            return array


def _info(number: int) -> GpuInfo:
    properties = runtime.getDeviceProperties(number)
    name = properties["name"].decode()
    return GpuInfo(
        number=number,
        name=name,
        bus_id=runtime.deviceGetPCIBusId(number).lower(),
        total_bytes=properties["totalGlobalMem"],
        lack=lack_of_sharing(name, runtime.deviceGetAttribute(_COMPUTE_MODE, number), has_mps=_has_mps()),
    )


def _has_mps() -> bool:
    """Return whether NVIDIA's Multi-Process Service runs.

    It uses GPUs in exclusive process mode for several processes.
    """
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


@cache
def _num_processors(gpu: int) -> int:
    number: int = cupy.cuda.Device(gpu).attributes["MultiProcessorCount"]
    return number


@cache
def _kernel(source: str, gpu: int) -> Any:  # noqa: ANN401  CuPy is not typed
    """Return the function of a source, loaded on a GPU, which must be the current one.

    CuPy's RawKernel would add -ftz=true to the options, and the GPU take subnormal numbers for zeros.
    """
    assert cupy.cuda.runtime.getDevice() == gpu
    binary, _ = cupy.cuda.compiler.compile_using_nvrtc(source, OPTIONS)
    module = cupy.cuda.function.Module()
    module.load(binary)
    return module.get_function(NAME)


class _ForeignStream:
    """Stream of another library, in the CUDA stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


def _stream_at(pointer: int, gpu: int) -> Any:  # noqa: ANN401  CuPy is not typed
    """Return CuPy's stream of a cudaStream_t; CuPy 14 warns of the class that CuPy 13 alone has."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_ForeignStream(pointer))
    return cupy.cuda.ExternalStream(pointer, gpu)


def _device_at(address: int) -> int:
    """Return the GPU that memory is on.

    For an array without elements, which has no address, it is the thread's own GPU.
    """
    device: int = runtime.pointerGetAttributes(address).device if address else runtime.getDevice()
    return device


def _bytes_of(memory: Any, nbytes: int) -> GpuArray:  # noqa: ANN401  CuPy is not typed
    array: GpuArray = cupy.ndarray((nbytes,), cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    return array
