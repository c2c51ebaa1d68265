"""Process group of c10d: its methods over one group's lane in the progress thread."""

from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from coarse.autoload import BACKEND_NAME
from coarse.protocol.joint import CollectiveKind, Joint
from coarse.session import current
from coarse.torch.c10d.arguments import Given, listed, only
from coarse.torch.c10d.collectives import Collectives
from coarse.torch.c10d.lane import GroupLane
from coarse.torch.c10d.members import meet
from coarse.torch.c10d.staging import Copies, require_dense
from coarse.torch.c10d.work import CoarseWork


def _base_class() -> type:
    """Return the base class of a backend in Python: Backend from torch 2.14 on, ProcessGroup before."""
    try:
        type("_Probe", (Backend,), {})(0, 1)
    except TypeError:  # it has no constructor
        return dist.ProcessGroup
    return Backend


class CoarseProcessGroup(Collectives, _base_class()):  # type: ignore[misc]  # which one, the version of torch says
    """Group of workers; methods are c10d's, and ranks are the group's.

    Raises:
        StallError: ranks that do not come within the timeout.
        MismatchError: ranks that call different collectives, or with tensors of different sizes or types.
        DeadRankError: a rank that has died.
        TypeError: tensors or operations that the backend does not have.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._own_name = name
        self._timeout = timeout
        self._rank, self._size = rank, size
        worker = current().client_index
        assert worker is not None
        with current().require_client().link.elsewhere():
            workers = meet(store, rank, size, worker, timeout, f"rank {worker}: process group {name!r}")
        self._lane = GroupLane(workers, name)

    # --- messages

    def send(self, tensors: Given, target: int, tag: int = 0) -> CoarseWork:
        """Send a tensor; done once it may be changed."""
        tensor = only(listed(tensors), "send")
        require_dense([tensor], "send")
        copies = Copies()
        steps = self._lane.steps.send(copies.read(tensor), target, _checked_tag(tag))
        message = self._lane.message(CollectiveKind.SEND, self._rank, target, tensor.nbytes, tag)
        pending = self._lane.post(
            f"send to rank {target}", copies.then([steps]), message, self._timeout, lambda: copies.deliver([])
        )
        return CoarseWork(pending, [tensor])

    def recv(self, tensors: Given, source: int, tag: int = 0) -> CoarseWork:
        """Overwrite a tensor with one of the same size from a rank."""
        return self._receive(only(listed(tensors), "recv"), source, tag)

    def recv_anysource(self, tensors: Given, tag: int = 0) -> CoarseWork:
        """Overwrite a tensor with one of the same size from any rank that sends one."""
        return self._receive(only(listed(tensors), "recv"), None, tag)

    def _receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> CoarseWork:
        require_dense([tensor], "recv")
        copies = Copies()
        target = copies.target(tensor, is_read=False)
        target.note_overwritten()
        found: list[int] = []
        steps = self._lane.steps.receive(target.array, source, _checked_tag(tag), found)
        whom = "any rank" if source is None else f"rank {source}"
        message = None
        if source is not None:
            message = self._lane.message(CollectiveKind.RECEIVE, source, self._rank, tensor.nbytes, tag)
        pending = self._lane.post(f"recv from {whom}", steps, message, self._timeout, lambda: copies.deliver([target]))
        return CoarseWork(pending, [tensor], lambda: found[0])

    # --- the group

    def barrier(self, opts: object = None) -> CoarseWork:
        """Return work that is done once all ranks have come."""
        joints = [Joint(CollectiveKind.BARRIER)]
        return self._launch("barrier", [], [self._lane.steps.barrier()], joints, opts, Copies())

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return once all ranks have come, or raise StallError after the timeout.

        The error names all ranks that have not come, for any `wait_all_ranks`. torch.distributed.monitored_barrier
        itself refuses every backend but Gloo.
        """
        self.barrier(timeout).wait()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that a call may wait from now on."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group; calls under way are given up."""
        self._lane.close()

    abort = shutdown

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return BACKEND_NAME

    name = getBackendName

    def _get_backend(self, device: torch.device) -> Self:
        """Return the backend that serves tensors on a device: this one, on all devices."""
        return self

    @property
    def supports_splitting(self) -> bool:
        """True if c10d may make groups from this one by its own means."""
        return False

    supports_coalescing = supports_time_estimate = supports_splitting

    @property
    def pg_name(self) -> str:
        """Name of the group, which torch chose."""
        return self._own_name

    group_name = pg_name

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices where torch puts tensors that it sends for itself, such as state dicts from rank 0."""
        return [torch.device("cpu")]


def _checked_tag(tag: int) -> int:
    if tag < 0:
        raise ValueError(f"a tag must not be negative, got {tag}")
    return tag
