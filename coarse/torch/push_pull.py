"""Interface on tensors: push, pull, push_pull, and handles."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from coarse import arrays
from coarse.client.handle import Handle as ArrayHandle
from coarse.errors import ConfigError
from coarse.gpu.interface import is_on_gpu as is_array_on_gpu
from coarse.protocol.dtypes import Op
from coarse.protocol.records import Descriptor
from coarse.session import current
from coarse.torch.compression import NoCompression, checked_compression
from coarse.torch.device_state import before_writing_to
from coarse.torch.differentiable import differentiable
from coarse.torch.handles import T, Waitable
from coarse.torch.names import named
from coarse.torch.on_gpu import contiguous_on_gpu, goes_by_gpu, gpu_array_of, in_its_stream, new_on_gpu, tensor_on_gpu
from coarse.torch.tensors import (
    array_of,
    describe,
    host_target,
    note_overwritten,
    on_host,
    tensor_of,
    torch_type_of,
    wire_type_of,
)

_Start = Callable[[Descriptor, np.ndarray, np.ndarray], ArrayHandle]
"""Method of the client, `push_pull` or `push_pull_again`."""


class Handle:
    """Result under way, which `wait` leaves in a tensor; see [Note: writes that autograd sees]."""

    def __init__(self, arriving: ArrayHandle, staged: torch.Tensor, out: torch.Tensor) -> None:
        note_overwritten([out])
        self._arriving = arriving
        self._staged = staged
        self._out = out
        self._is_direct = staged.data_ptr() == out.data_ptr() and staged.device == out.device
        self._is_delivered = False
        self.when_delivered: Callable[[], None] | None = None
        """Callback that is called once the result has been taken."""

    @property
    def present(self) -> bool:
        """True if any worker contributed; known after `wait`."""
        return self._arriving.present

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._arriving.done()

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """Return the result.

        Raises:
            StallError: it took longer than `timeout` seconds (default: stall_timeout_s); it names the missing ranks.
        """
        before_writing_to([self._out])
        with in_its_stream(self._out):
            self._arriving.wait(timeout)
        if not self._is_delivered:
            if self._is_direct:
                note_overwritten([self._out])
            else:
                with torch.no_grad():
                    self._out.copy_(self._staged)
            self._is_delivered = True
            if self.when_delivered is not None:
                self.when_delivered()
        return self._out


class PushedTensor(Handle):
    """Handle of a push: the tensor has been copied, so that it may be used again at once."""

    def __init__(self, arriving: ArrayHandle, tensor: torch.Tensor) -> None:
        self._arriving = arriving
        self._out = tensor

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """Return the tensor, which was not written to."""
        return self._out


def push(tensor: torch.Tensor, name: str, op: Op = Op.AVERAGE, priority: int = 0) -> Handle:
    """Contribute to the next version of `name`, which is complete once all workers have pushed.

    The tensor (any shape, also non-contiguous) has been copied when this returns.
    """
    client = current().require_client()
    descriptor = describe(tensor, name, op, priority)
    with in_its_stream(tensor):
        return PushedTensor(client.push(descriptor, _array_to_push(tensor)), tensor)


def pull(name: str, out: torch.Tensor | None = None) -> Handle:
    """Get the version of `name` after this worker's last push, else the current one."""
    protocol = current().require_client().protocol
    state = protocol.keys.get(protocol.key(name))
    if out is None:
        descriptor = state.descriptor if state is not None else None
        dtype = torch_type_of(descriptor.dtype) if descriptor is not None else torch.uint8
        out = torch.empty(descriptor.shape if descriptor is not None else (0,), dtype=dtype, device="cpu")
    elif state is not None and wire_type_of(out, name) != state.descriptor.dtype:
        raise TypeError(
            f"rank {arrays.rank()}: {name!r} is {state.descriptor} but out has {out.dtype}; leave "
            "out away to get a new tensor"
        )
    staged, array = _target(out)
    with in_its_stream(out):
        return Handle(arrays.pull(name, array), staged, out)


def push_pull(
    tensor: torch.Tensor,
    name: str | bool | None = None,
    op: Op | str | None = None,
    priority: int = 0,
    *,
    average: bool | None = None,
    version: int = 0,
    compression: type[NoCompression] = NoCompression,
) -> torch.Tensor:
    """Return all workers' tensors combined, as a new tensor, through which gradients flow.

    After a StallError the same call, with the same values, goes on waiting for the same result, where it has a name;
    one without is another call each time.

    Args:
        tensor: any shape.
        name: name by which workers' calls are matched; without, they are matched by their order.
        op: coarse.Average (the default), Sum, Min or Max. BytePS's form (tensor, average, name) is taken too.
        priority: among several tensors that are ready, the one of highest priority is synchronised first.
        average: BytePS's form of `op`.
        version: BytePS's argument, which means nothing here.
        compression: Compression.fp16 or bf16: float32 travels as halves.
    """
    how, key, is_unnamed = _asked(name, op, average)

    def run(values: Sequence[torch.Tensor], of: str = key) -> list[torch.Tensor]:
        value, dtype = compression.compress(values[0])
        found = _to_new(current().require_client().push_pull_again, value, of, how, priority).wait()
        if is_unnamed:
            arrays.forget(of)
        return [compression.decompress(found, dtype)]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if how not in (Op.SUM, Op.AVERAGE):
            raise TypeError(f"{key!r}: no gradient goes through a push_pull by {how.name}; call it on tensor.detach()")
        return run([gradients[0].contiguous()], f"{key}.gradient")

    checked_compression(compression)
    return differentiable(run, back, [tensor])[0]


def push_pull_(
    tensor: torch.Tensor,
    name: str | bool | None = None,
    op: Op | str | None = None,
    priority: int = 0,
    *,
    average: bool | None = None,
    version: int = 0,
) -> torch.Tensor:
    """Combine all workers' tensors in place; see push_pull.

    After a StallError the tensor may hold a part of the result; the same call, with what the error left there, goes on
    waiting for all of it.
    """
    how, key, is_unnamed = _asked(name, op, average)
    found = _in_place(current().require_client().push_pull_again, tensor, key, how, priority).wait()
    if is_unnamed:
        arrays.forget(key)
    return found


def push_pull_async(
    tensor: torch.Tensor,
    name: str | bool | None = None,
    op: Op | str | None = None,
    priority: int = 0,
    *,
    average: bool | None = None,
    version: int = 0,
) -> Handle:
    """Start a push_pull whose result is a new tensor, on the device of `tensor`; see push_pull.

    A tensor made by `device_array` is not copied: its result is found in place.
    """
    how, key, is_unnamed = _asked(name, op, average)
    handle = _to_new(current().require_client().push_pull, tensor, key, how, priority)
    return _forgotten_after(handle, key) if is_unnamed else handle


def push_pull_async_(
    tensor: torch.Tensor,
    name: str | bool | None = None,
    op: Op | str | None = None,
    priority: int = 0,
    *,
    average: bool | None = None,
    version: int = 0,
) -> Handle:
    """Start a push_pull whose result `wait` writes into `tensor`; see push_pull.

    Don't touch the tensor until then.
    """
    how, key, is_unnamed = _asked(name, op, average)
    handle = _in_place(current().require_client().push_pull, tensor, key, how, priority)
    return _forgotten_after(handle, key) if is_unnamed else handle


push_pull_inplace = push_pull_
push_pull_async_inplace = push_pull_async_


def declare(name: str) -> None:
    """Do nothing: BytePS wants it before a name's first use, and here names need no declaration."""


def _asked(name: Any, op: Any, average: bool | None) -> tuple[Op, str, bool]:  # noqa: ANN401
    """Return the operation of a call, its key, and whether that is to be forgotten afterwards.

    push_pull describes the forms.
    """
    if isinstance(name, bool):  # BytePS's (tensor, average, name)
        if average is not None:
            raise ValueError(f"average={average} came twice; give (tensor, average, name) or name and average by name")
        name, op, average = op, None, name
    if isinstance(name, Op) and op is None:
        name, op = None, name
    if average is not None:
        if op is not None:
            raise ValueError(f"give average={average} or op={op!r}, not both")
        op = Op.AVERAGE if average else Op.SUM
    how = Op.AVERAGE if op is None else op
    if name is None:
        return how, *named("push_pull", None)
    return how, name, False


def _forgotten_after(handle: Handle, key: str) -> Handle:
    """Return the handle of a call without a name, whose key is free once its result was taken."""
    handle.when_delivered = lambda: arrays.forget(key)
    return handle


def _to_new(start: _Start, tensor: torch.Tensor, name: str, op: Op, priority: int) -> Handle:
    descriptor = describe(tensor, name, op, priority)
    source = _array_to_push(tensor)
    if current().require_client().is_device_array(descriptor, source):
        with in_its_stream(tensor):
            return Handle(start(descriptor, source, source), tensor, tensor)
    if goes_by_gpu(tensor):
        result = new_on_gpu(tensor)
        with in_its_stream(tensor):
            return Handle(start(descriptor, source, gpu_array_of(result)), result, result)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    handle = start(descriptor, source, array_of(staged))
    out = staged if tensor.device.type == "cpu" else torch.empty_like(tensor)
    return Handle(handle, staged, out)


def _in_place(start: _Start, tensor: torch.Tensor, name: str, op: Op, priority: int) -> Handle:
    descriptor = describe(tensor, name, op, priority)
    staged, array = _target(tensor)
    source = array if staged.data_ptr() == tensor.data_ptr() else _array_to_push(tensor)
    with in_its_stream(tensor):
        return Handle(start(descriptor, source, array), staged, tensor)


def _array_to_push(tensor: torch.Tensor) -> np.ndarray:
    """Return the array that the client pushes of a tensor: its memory, or a copy of its values."""
    return gpu_array_of(contiguous_on_gpu(tensor)) if goes_by_gpu(tensor) else array_of(on_host(tensor))


def _target(tensor: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Return the place where a tensor's result arrives, as a tensor and as an array.

    It is the tensor's own memory or a staging buffer beside it.
    """
    if not goes_by_gpu(tensor):
        staged = host_target(tensor)
        return staged, array_of(staged)
    is_direct = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
    staged = tensor.detach() if is_direct else new_on_gpu(tensor)
    return staged, gpu_array_of(staged)


def synchronize(handle: Waitable[T]) -> T:
    """Wait for a handle and return its result."""
    return handle.wait()


def poll(handle: Waitable[object]) -> bool:
    """Return whether a handle's result is there."""
    return handle.done()


def device_array(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    op: Op = Op.AVERAGE,
    priority: int = 0,
) -> torch.Tensor:
    """Return a tensor in device memory, zeros at first, whose push_pull under `name` moves no bytes.

    It is on a GPU where the device's memory is one's.
    """
    sample = describe(torch.empty(0, dtype=dtype, device="cpu"), name, op, priority)
    shape = arrays.checked_shape(name, shape)
    descriptor = Descriptor(name, sample.dtype, sample.op, shape, sample.priority)
    array = current().require_client().device_array(descriptor)
    make = tensor_on_gpu if is_array_on_gpu(array) else tensor_of
    return make(array, descriptor.dtype)


def join(device: int = -1) -> int:
    """Announce that this worker has no more batches: it counts as zero until all have joined.

    It returns the rank that joined last, which has seen every step; broadcast the parameters from it. `device`, which
    Horovod wants, means nothing here.

    Raises:
        ConfigError: mode is "allreduce", where workers wait for one another.
        InFlightError: something that this worker pushed is not complete.
        DeadRankError: another worker has shut down without joining.
    """
    if current().strategy.lag:
        raise ConfigError(
            f"rank {arrays.rank()}: join() ends a worker's part when all of its sums were taken, and those of mode "
            f"{current().config.mode!r} come {current().strategy.lag} rounds late; give all ranks equally many batches",
            key="mode",
        )
    if not current().strategy.uses_devices:
        raise ConfigError(
            f"rank {arrays.rank()}: join() needs memory devices that count this rank as zero, and mode "
            f"{current().config.mode!r} "
            'has none at work; use mode "coarse", or give all ranks equally many batches'
        )
    return current().require_client().join()
