"""A stand-in for CUDA: GPUs whose memory is the machine's, and streams that do nothing before somebody asks.

It keeps CUDA's order and errors. What a stream was given is done one step at a time, and only when an event of it is
asked for or waited for: whoever reads without asking reads what was there before. A handle names its process, and opens
as long as that process lives. numpy cannot read an array of a GPU. A sum reaches only what its GPU reaches. What a copy
reads is kept alive by nobody: where it was freed, it may be another's by then, which is an error.
"""

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from coarse.errors import CapacityError, GpuError
from coarse.gpu.interface import HANDLE_BYTES, GpuInfo
from coarse.protocol.dtypes import DType, Op
from tests.support.host_arrays import HostArrays

_lock = threading.RLock()
"""Held by whoever gives a stream something, or has one do something."""
_UNKNOWN = 0xA5
"""What new memory is full of."""


class StandInArray:
    """See GpuArray: numpy's array within, which nothing but a stream touches."""

    def __init__(self, values: np.ndarray, gpu: int) -> None:
        self.values = values
        self.gpu = gpu

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def size(self) -> int:
        return self.values.size

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def itemsize(self) -> int:
        return self.values.itemsize

    @property
    def flags(self) -> Any:
        return self.values.flags

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.values.ctypes.data, False), "shape": self.shape, "typestr": self.dtype.str, "version": 2}

    def view(self, dtype: np.dtype[Any]) -> "StandInArray":
        return StandInArray(self.values.view(dtype), self.gpu)

    def reshape(self, *shape: Any) -> "StandInArray":
        reshaped = self.values.reshape(*shape)
        assert np.shares_memory(reshaped, self.values) or not reshaped.size
        return StandInArray(reshaped, self.gpu)

    def __getitem__(self, index: slice) -> "StandInArray":
        return StandInArray(self.values[index], self.gpu)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("numpy cannot read an array in a GPU's memory")


class StandInStream:
    """See Stream; also the Arrays whose operations take their turn in it."""

    def __init__(self, gpus: "StandInGpus", gpu: int, *, is_users: bool = False) -> None:
        """`is_users`: memory that is freed is used again only after what this stream was given until then."""
        self.gpu = gpu
        self._gpus = gpus
        self._is_users = is_users
        self._steps: deque[Callable[[], bool]] = deque()
        """Each says whether it is done, or has to be tried again."""
        self._num_given = self._num_done = 0
        self._error: Exception | None = None

    @property
    def arrays(self) -> "StandInStream":
        return self

    def record(self) -> "StandInEvent":
        with _lock:
            return StandInEvent(self, self._num_given)

    def wait_for(self, event: "StandInEvent") -> None:
        self.give(event.is_done)

    def copy(self, target: Any, source: Any) -> None:
        assert target.nbytes == source.nbytes
        assert target.flags.c_contiguous
        assert source.flags.c_contiguous
        if isinstance(source, np.ndarray) and not self._gpus.is_pinned(source):
            source = source.copy()
        flat, read = _values(target).reshape(-1).view(np.uint8), self._read(source)
        self._give(lambda: HostArrays().copy(flat, read()))
        if isinstance(target, np.ndarray) and not self._gpus.is_pinned(target):
            self.record().wait()

    def zero(self, target: Any) -> None:
        self._give(lambda: HostArrays().zero(_values(target)))

    def reduce(self, sources: Sequence[Any], targets: Sequence[Any], dtype: DType, op: Op, divisor: int) -> None:
        self._require_reached([*sources, *targets])
        read, written = [_values(one) for one in sources], [_values(one) for one in targets]
        self._give(lambda: HostArrays().reduce(read, written, dtype, op, divisor))

    def combine(self, sources: Sequence[Any], target: Any, dtype: DType, op: Op) -> None:
        self._require_reached([*sources, target])
        read, written = [_values(one) for one in sources], _values(target)
        self._give(lambda: HostArrays().combine(read, written, dtype, op))

    def give(self, step: Callable[[], bool]) -> None:
        """Have the stream do something, which says whether it is done."""
        with _lock:
            self._steps.append(step)
            self._num_given += 1

    def fail(self) -> None:
        """What the stream is to do next fails, as a kernel does that reads what is not mapped."""

        def fail() -> bool:
            raise GpuError("what a GPU was given has failed: an illegal memory access was encountered")

        self.give(fail)

    def go_on(self) -> None:
        """Do one step, or try to."""
        with _lock:
            if self._error is not None:
                raise self._error
            if not self._steps:
                return
            try:
                if self._steps[0]():
                    self._steps.popleft()
                    self._num_done += 1
            except Exception as error:
                self._error = error if isinstance(error, GpuError) else GpuError(f"a stand-in's stream: {error}")
                raise self._error from None

    @property
    def num_done(self) -> int:
        return self._num_done

    def _give(self, step: Callable[[], None]) -> None:
        def do() -> bool:
            step()
            return True

        self.give(do)

    def _read(self, array: Any) -> Callable[[], np.ndarray]:
        """An array's bytes once it is their turn."""
        flat = _values(array).reshape(-1).view(np.uint8)
        address, nbytes = flat.ctypes.data, flat.nbytes
        if isinstance(array, np.ndarray) or self._is_users or self._gpus.gpu_at(address) < 0:  # torch's own on the way
            return lambda: flat
        return lambda: self._gpus.bytes_at(address, nbytes)

    def _require_reached(self, arrays: Sequence[Any]) -> None:
        """A kernel reads and writes through its own GPU's mappings."""
        for array in arrays:
            assert isinstance(array, StandInArray), f"a kernel was given {type(array).__name__}"
            if array.gpu != self.gpu:
                raise GpuError(f"a kernel on GPU {self.gpu} was given memory that GPU {array.gpu} reaches")


class StandInEvent:
    """See Event: asking has the stream go on by one step, so that an event is seldom done when it is first asked."""

    def __init__(self, stream: StandInStream, number: int) -> None:
        self._stream = stream
        self._number = number

    def is_done(self) -> bool:
        with _lock:
            if self._stream.num_done >= self._number:
                return True
            self._stream.go_on()
            return False

    def wait(self) -> None:
        while not self.is_done():
            pass


class StandInGpus:
    """See Gpus; each GPU has so many bytes, and all reach one another but the pairs in `strangers`."""

    def __init__(
        self,
        num_gpus: int = 1,
        *,
        total_bytes: int = 1 << 28,
        strangers: Sequence[tuple[int, int]] = (),
        lacks: Sequence[str] = (),
        most_pinned_bytes: int = 1 << 62,
        hidden: Sequence[int] = (),
    ) -> None:
        self._shown = [gpu for gpu in range(num_gpus) if gpu not in hidden]
        self._total_bytes = total_bytes
        self._strangers = {frozenset(pair) for pair in strangers}
        self._lacks = [*lacks, *[""] * num_gpus]
        self._most_pinned_bytes = most_pinned_bytes
        self._used_bytes = [0] * num_gpus
        self._files: dict[int, int] = {}
        """Address of an allocation -> its descriptor."""
        self._mappings: dict[int, tuple[int, int]] = {}
        """Address -> (bytes, GPU through which it is reached); the host may have the address once its array is gone."""
        self._pinned: dict[int, int] = {}
        self._gone: deque[int] = deque()
        """Addresses of memory that has ended since the last look."""
        self._current = threading.local()
        self._streams: dict[int, StandInStream] = {}
        """By the number that stands for a cudaStream_t."""
        self.closed: list[int] = []
        """Addresses of mappings that were given back."""

    def infos(self) -> tuple[GpuInfo, ...]:
        return tuple(
            GpuInfo(
                number=number,
                name="Stand-in",
                bus_id=f"0000:{gpu:02x}:00.0",
                total_bytes=self._total_bytes,
                lack=self._lacks[gpu],
            )
            for number, gpu in enumerate(self._shown)
        )

    def free_bytes(self, gpu: int) -> int:
        return self._total_bytes - self._used_bytes[gpu]

    def can_access(self, gpu: int, peer: int) -> bool:
        return frozenset((gpu, peer)) not in self._strangers

    def allocate(self, gpu: int, nbytes: int) -> StandInArray:
        if nbytes > self.free_bytes(gpu):
            raise CapacityError(f"allocating {nbytes} bytes on GPU {gpu}: cudaErrorMemoryAllocation: out of memory")
        self._used_bytes[gpu] += nbytes
        descriptor = os.memfd_create("stand-in-gpu")
        os.ftruncate(descriptor, nbytes)
        array = self._mapped(descriptor, nbytes, gpu)
        array.values[: 1 << 20] = _UNKNOWN
        self._files[array.values.ctypes.data] = descriptor
        return array

    def export(self, memory: StandInArray) -> bytes:
        descriptor = self._files[memory.values.ctypes.data]
        return f"{os.getpid()} {descriptor}".encode().ljust(HANDLE_BYTES)

    def open(self, handle: bytes, nbytes: int, gpu: int) -> StandInArray:
        process_id, descriptor = map(int, handle.split())
        assert process_id != os.getpid(), "CUDA opens no handle of the same process"
        try:
            opened = os.open(f"/proc/{process_id}/fd/{descriptor}", os.O_RDWR)
        except OSError:
            raise GpuError(
                "mapping another process's GPU memory: cudaErrorInvalidResourceHandle: invalid resource handle"
            ) from None
        try:
            return self._mapped(opened, nbytes, gpu)
        finally:
            os.close(opened)

    def close(self, memory: StandInArray) -> None:
        self.closed.append(memory.values.ctypes.data)

    def stream(self, gpu: int) -> StandInStream:
        return StandInStream(self, gpu)

    def current_stream(self, gpu: int) -> StandInStream:
        found: dict[int, StandInStream] = self._current.__dict__.setdefault("streams", {})
        return found.setdefault(gpu, StandInStream(self, gpu, is_users=True))

    def users_stream(self, gpu: int) -> StandInStream:
        """A new stream for `using`."""
        return StandInStream(self, gpu, is_users=True)

    def pointer_of(self, stream: StandInStream) -> int:
        """A number for `using`, as a cudaStream_t is one."""
        self._streams[id(stream)] = stream
        return id(stream)

    @contextlib.contextmanager
    def using(self, gpu: int, pointer: int) -> Iterator[None]:
        before = self.current_stream(gpu)
        self._current.streams[gpu] = self._streams[pointer]
        try:
            yield
        finally:
            self._current.streams[gpu] = before

    def pin(self, array: np.ndarray) -> None:
        with _lock:
            self._settle()
        begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
        if any(begin < other + nbytes and other < end for other, nbytes in self._pinned.items()):
            raise CapacityError(f"CUDA refused to pin {array.nbytes} bytes (cudaErrorHostMemoryAlreadyRegistered)")
        if sum(self._pinned.values()) + array.nbytes > self._most_pinned_bytes:
            raise CapacityError(f"CUDA refused to pin {array.nbytes} bytes of host memory (out of memory); ulimit -l")
        self._pinned[begin] = array.nbytes

    def unpin(self, array: np.ndarray) -> None:
        assert self._pinned.pop(array.ctypes.data) == array.nbytes

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether one `pin` covers an array; CUDA refuses a copy of memory of which it covers a part."""
        begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
        with _lock:
            self._settle()
            touching = [(at, at + n) for at, n in self._pinned.items() if begin < at + n and at < end]
        if touching and not (touching[0][0] <= begin and end <= touching[0][1]):
            raise GpuError("copying memory that is pinned in part: cudaErrorInvalidValue: invalid argument")
        return bool(touching)

    @property
    def num_pinned(self) -> int:
        """How many ranges are pinned."""
        return len(self._pinned)

    def pinned(self, nbytes: int) -> np.ndarray:
        array = np.full(nbytes, _UNKNOWN, np.uint8)
        self.pin(array)
        self._watch(array)
        return array

    def array_of(self, given: Any) -> StandInArray:
        if isinstance(given, StandInArray):
            return given
        begin = given.data_ptr()  # a torch tensor that lies in the memory of a stand-in is one of CUDA
        return StandInArray(given.detach().numpy(), self.gpu_at(begin))

    def gpu_at(self, address: int) -> int:
        """Through which GPU an address is reached; -1 where it is the host's."""
        with _lock:
            self._settle()
            found = self._mappings.items()
            return next((gpu for begin, (nbytes, gpu) in found if begin <= address < begin + nbytes), -1)

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8 of a GPU's memory; GpuError where it is nobody's any more."""
        if nbytes and self.gpu_at(address) < 0:
            raise GpuError("copying a GPU's memory that has been freed: it may be another's already")
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def gpu_of(self, array: StandInArray) -> int:
        return array.gpu

    def empty(self, gpu: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StandInArray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        flat = self.allocate(gpu, max(nbytes, 1))
        return StandInArray(flat.values[:nbytes].view(dtype).reshape(shape), gpu)

    def array(self, values: np.ndarray, gpu: int = 0) -> StandInArray:
        """Values in a GPU's memory."""
        made = self.empty(gpu, values.shape, values.dtype)
        made.values[...] = values
        return made

    def _settle(self) -> None:
        """Forget memory that is nobody's any more; arrays end anywhere, within this class too."""
        while self._gone:
            address = self._gone.popleft()
            self._mappings.pop(address, None)
            self._pinned.pop(address, None)
            descriptor = self._files.pop(address, None)
            if descriptor is not None:
                os.close(descriptor)

    def _watch(self, array: np.ndarray) -> None:
        weakref.finalize(array, self._gone.append, array.ctypes.data).atexit = False

    def _mapped(self, descriptor: int, nbytes: int, gpu: int) -> StandInArray:
        values = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        with _lock:
            self._settle()
            self._mappings[values.ctypes.data] = nbytes, gpu
        self._watch(values)
        return StandInArray(values, gpu)


def _values(array: Any) -> np.ndarray:
    return array.values if isinstance(array, StandInArray) else array
