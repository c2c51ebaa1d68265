"""A group's collectives on tensors of the CPU, and of CUDA by way of pinned host memory (node buffers are pinned too).

What arrives for a CUDA tensor is copied to it in a stream of its own, after the collective and in the group's order, so
that nobody waits for the copy before the values are used. That part was never tried: there was no GPU to try it on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from coarse.errors import CapacityError
from coarse.protocol.dtypes import Op
from coarse.torch.tensors import bytes_of, wire_type_of

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup
    from coarse.collectives.node_memory import NodeBuffer
    from coarse.collectives.progress import Pending, Waits


class Transfers:
    """What a unit moves; every call but `reduce` returns at once. Tensors are flat and contiguous.

    `alike` is what all members must mean by the same transfer; see WorkerGroup.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group

    def gather(
        self, out: torch.Tensor, own: torch.Tensor, what: str, alike: str, keep: NodeBuffer | None = None
    ) -> Pending:
        """All workers' `own`, (n,), into `out`, (p*n,), and into the node's buffer."""
        arriving = _host_target(out)
        values = bytes_of(_host_values(own))
        pending = self.group.all_gather(bytes_of(arriving), values, keep=keep, what=what, alike=alike)
        return self._landed(pending, arriving, out, what)

    def read(self, out: torch.Tensor, kept: NodeBuffer, what: str) -> Pending:
        """What the node's buffer holds into `out`; nothing moves between nodes, and to CUDA it goes from there."""
        if out.device.type == "cpu":
            return self.group.read_node(bytes_of(out), kept, what=what)
        copy = _copy_to_device(torch.from_numpy(kept.array[: out.nbytes]).view(out.dtype), out)
        return self.group.submit(lambda _comm: copy(), what=what)

    def gather_near(self, out: torch.Tensor, own: torch.Tensor, what: str, alike: str) -> Pending:
        """`own`, (n,), of the node's L workers into `out`, (L*n,) of the same bytes; nothing moves between nodes."""
        arriving = _host_target(out)
        values = bytes_of(_host_values(own))
        pending = self.group.gather_on_node(bytes_of(arriving), values, what=what, alike=alike)
        return self._landed(pending, arriving, out, what)

    def reduce(self, out: torch.Tensor, full: torch.Tensor, what: str, alike: str) -> None:
        """The sum of all workers' `full`, (p*n,), in this worker's place into `out`, (n,); returns when it is there."""
        arriving = _host_target(out)
        values = bytes_of(_host_values(full))
        wire = wire_type_of(full, what)
        self.group.reduce_scatter(bytes_of(arriving), values, wire, Op.SUM, what=what, alike=alike).wait()
        if arriving is not out:
            out.copy_(arriving, non_blocking=True)

    def _landed(self, pending: Pending, arriving: torch.Tensor, out: torch.Tensor, what: str) -> Pending:
        """What ends once `out` has the bytes."""
        if arriving is out:
            return pending
        copy = _copy_to_device(arriving, out)
        return self.group.submit(lambda _comm: copy(), what=f"{what}, to the accelerator")


def _host_target(tensor: torch.Tensor) -> torch.Tensor:
    """Where the bytes for a tensor arrive: itself on the CPU, else pinned host memory."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _host_values(tensor: torch.Tensor) -> torch.Tensor:
    """The values where MPI can read them."""
    if tensor.device.type == "cpu":
        return tensor
    values = _host_target(tensor)
    values.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return values


def _copy_to_device(source: torch.Tensor, target: torch.Tensor) -> Callable[[], Waits]:
    """A job that copies from pinned memory to CUDA, after what the caller's stream has under way."""
    is_free = torch.cuda.current_stream(target.device).record_event()

    def copy() -> Waits:
        stream = _copy_stream(target.device)
        with torch.cuda.stream(stream):
            stream.wait_event(is_free)
            target.copy_(source, non_blocking=True)
            yield _Copied(stream.record_event())

    return copy


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class _Copied:
    """A copy under way; see coarse.collectives.awaited."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_over(self) -> bool:
        """Whether the device has done it."""
        return bool(self._event.query())

    def missing(self) -> tuple[int, ...]:
        """No rank is waited for."""
        return ()


class PendingWork(dist.Work):
    """A job of the progress thread, as torch's Work."""

    def __init__(self, pending: Pending, finish: Callable[[], None] = lambda: None) -> None:
        """`finish` runs once, in the thread that waits, after the job is done."""
        super().__init__()
        self.pending = pending
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the tensors may be used; raises coarse's errors."""
        self.pending.wait(timeout.total_seconds() if timeout else None)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self.pending.is_done()


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
