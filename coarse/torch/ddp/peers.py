"""Peers of an optimizer: all workers, by the memory devices, or a process set, by its members."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from coarse.errors import ConfigError
from coarse.gpu.interface import is_on_gpu
from coarse.parallel.data.choice import reducer_of
from coarse.parallel.data.presence import Presence
from coarse.parallel.data.reducer import Flight, Reducer, ReducerSource
from coarse.protocol.agreement import Entries
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.session import current, is_initialized
from coarse.strategy.strategy import Strategy
from coarse.torch.c10d.reduction import Operation
from coarse.torch.groups.parameters import require_same_among
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, group_of, members_of
from coarse.torch.on_gpu import tensor_on_gpu
from coarse.torch.tensors import tensor_of

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime
    from coarse.torch.groups.group import Arriving, Group

_OPERATION_OF = {int(Op.SUM): Operation.SUM, int(Op.AVERAGE): Operation.AVERAGE}


class Meeting(Protocol):
    """Synchronization point of peers, once a step, before they exchange facts on sparse gradients.

    Presence is that of all workers.
    """

    @property
    def is_open(self) -> bool:
        """True if this step's has been asked for."""
        ...

    def ask(self) -> None:
        """Tell that this worker has come, unless it was told."""
        ...

    def joined(self) -> tuple[int, ...]:
        """Return the peers that come no more, once all others have come.

        After a StallError it may be called again.
        """
        ...

    def end(self) -> None:
        """End this step's point; the next step's is another."""
        ...

    def close(self) -> None:
        """Close it, as no step will use it any more."""
        ...


class Peers(Protocol):
    """Workers whose gradients are combined."""

    size: int
    """Number of peers."""
    rank: int
    """Number of this worker among them; 0 where it is none of them."""
    is_member: bool
    """True if this worker is one of them; the others step alone."""
    switch: ReducerSource | None
    """Switch that adds their buckets, in place of the configuration's way."""
    label: str
    """Prefix of the numbers of their optimizers."""

    def require_same(self, entries: Entries, what: str) -> None:
        """Require entries that are equal on all peers; see require_same_among."""
        ...

    def reducer(self, prefix: str, gpu: int | None, strategy: Strategy) -> Reducer:
        """Return the reducer of their buckets, which are on a `gpu` if one is given.

        `prefix` stands before its keys' names.
        """
        ...

    def meeting(self, name: str) -> Meeting:
        """Return their synchronization point."""
        ...

    def group(self) -> "Group":
        """Return the group by which they communicate."""
        ...

    def combine(self, name: str, op: Op, values: np.ndarray) -> np.ndarray:
        """Return all peers' (n,) float64 values combined; a worker that is none of them gets its own."""
        ...

    def forget(self, name: str) -> None:
        """Forget a name, by which nothing will be combined any more."""
        ...


class AllWorkers:
    """All workers as peers, who combine gradients in the configuration's way."""

    is_member = True
    label = ""

    def __init__(self, runtime: "Runtime", switch: ReducerSource | None = None) -> None:
        """Start with `switch`, which adds their buckets in place of the configuration's way."""
        assert runtime.client_index is not None
        self._runtime = runtime
        self.switch = switch
        self.size = runtime.placement.num_clients
        self.rank = runtime.client_index

    def require_same(self, entries: Entries, what: str) -> None:
        """Require entries that are equal on all workers."""
        require_same_among(global_process_set, entries, what)

    def reducer(self, prefix: str, gpu: int | None, strategy: Strategy) -> Reducer:
        """Return the reducer of the configuration, or of the switch."""
        return reducer_of(self._runtime, prefix, self.switch, gpu=gpu, strategy=strategy)

    def meeting(self, name: str) -> Meeting:
        """Return the workers' Presence."""
        return Presence(self._runtime, name)

    def group(self) -> "Group":
        """Return the group of all workers."""
        return group_of(global_process_set)

    def combine(self, name: str, op: Op, values: np.ndarray) -> np.ndarray:
        """Return all workers' values combined by the memory devices."""
        descriptor = Descriptor(name, int(DType.FLOAT64), int(op), values.shape, 0)
        client = self._runtime.require_client()
        return client.push_pull_again(descriptor, values, np.empty_like(values)).wait()

    def forget(self, name: str) -> None:
        """Deregister a name at the memory devices."""
        if is_initialized():
            self._runtime.require_client().deregister(name)


class Members:
    """Members of a process set, who combine gradients themselves; the memory devices have no part in it."""

    def __init__(self, runtime: "Runtime", process_set: ProcessSet) -> None:
        """Find the members of a process set.

        Raises:
            ConfigError: the set was not added.
        """
        self._set = process_set
        self.switch: ReducerSource | None = None
        self.is_member = process_set.process_set_id is not None and process_set.included()
        if self.is_member or process_set.process_set_id is None:
            group_of(process_set)
        members = members_of(process_set)
        self.size = len(members)
        self.rank = process_set.rank() if self.is_member else 0
        self.label = "process set " + ",".join(map(str, members)) + "/"
        self._worker = runtime.client_index
        self._stall_timeout_s = runtime.config.stall_timeout_s

    def require_same(self, entries: Entries, what: str) -> None:
        """Require entries that are equal on all members."""
        require_same_among(self._set, entries, what)

    def reducer(self, prefix: str, gpu: int | None, strategy: Strategy) -> Reducer:
        """Return a reducer whose buckets the members all-reduce."""
        from coarse.parallel.data.allreduce import AllreduceReducer  # which calls MPI, and an import must not start it

        assert self._worker is not None
        return AllreduceReducer(_MembersStream(self), self._worker, lambda _: None)

    def meeting(self, name: str) -> Meeting:
        """Return a barrier of the members."""
        return _MembersMeeting(self, name)

    def group(self) -> "Group":
        """Return the group of the members.

        Raises:
            ConfigError: the set was removed.
        """
        return group_of(self._set)

    def combine(self, name: str, op: Op, values: np.ndarray) -> np.ndarray:
        """Return the members' values combined; a worker that is none of them gets its own."""
        if not self.is_member:
            return values
        total = torch.from_numpy(values.copy())
        self.waited(self.group().reduce_in_place(total, _OPERATION_OF[int(op)], name, timedelta.max))
        return total.numpy()

    def forget(self, name: str) -> None:
        """Do nothing, as names are not kept."""

    def waited(self, arriving: "Arriving[torch.Tensor] | Arriving[None]") -> None:
        """Wait for a call.

        Raises:
            StallError: it took longer than stall_timeout_s; it may be waited for again.
        """
        arriving.wait(self._stall_timeout_s)


class _MembersFlight:
    """Bucket that members combine."""

    def __init__(self, arriving: "Arriving[torch.Tensor]", peers: Members) -> None:
        self._arriving = arriving
        self._peers = peers

    def wait(self) -> None:
        """Wait for the bucket."""
        self._peers.waited(self._arriving)


class _MembersStream:
    """Buckets that members combine one after the other."""

    takes_gpus = True

    def __init__(self, peers: Members) -> None:
        self._peers = peers

    def open(self) -> None:
        """Do nothing, as the members' group is open."""

    def prepare(self, descriptors: Sequence[Descriptor]) -> None:
        """Do nothing, as nothing is kept of buckets."""

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> Flight:
        """Begin to combine a bucket."""
        wire = DType(descriptor.dtype)
        bucket = (tensor_on_gpu if is_on_gpu(array) else tensor_of)(array, wire)
        operation = _OPERATION_OF[descriptor.op]
        arriving = self._peers.group().reduce_in_place(bucket, operation, descriptor.name, timedelta.max)
        return _MembersFlight(arriving, self._peers)

    def close(self) -> None:
        """Do nothing, as nothing was opened."""


class _MembersMeeting:
    """Barrier of the members."""

    def __init__(self, peers: Members, name: str) -> None:
        self._peers = peers
        self._name = name
        self._arriving: Arriving[None] | None = None

    @property
    def is_open(self) -> bool:
        """True if this step's barrier has been asked for."""
        return self._arriving is not None

    def ask(self) -> None:
        """Begin the barrier, unless that is done."""
        if self._arriving is None:
            self._arriving = self._peers.group().meet(f"{self._name}/meeting")

    def joined(self) -> tuple[int, ...]:
        """Return no ranks once all members have come: members of a process set do not join."""
        assert self._arriving is not None
        self._peers.waited(self._arriving)
        return ()

    def end(self) -> None:
        """Wait for the barrier's end."""
        if self._arriving is not None:
            self._peers.waited(self._arriving)
            self._arriving = None

    def close(self) -> None:
        """End the barrier."""
        self.end()


def peers_of(process_set: ProcessSet, switch: ReducerSource | None = None) -> Peers:
    """Return the peers of a process set; `switch` is the switch that adds the buckets of all workers.

    Raises:
        ConfigError: the set was not added, or is to use a switch and is not that of all workers.
        TypeError: what is no process set, or no switch.
    """
    if switch is not None and not isinstance(switch, ReducerSource):
        raise TypeError(f"switch must be a Switch, got {type(switch).__name__} {switch!r}")
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set must be a ProcessSet, got {type(process_set).__name__} {process_set!r}")
    runtime = current()
    if process_set is global_process_set:
        return AllWorkers(runtime, switch)
    if switch is not None:
        raise ConfigError(
            f"a switch adds what all workers push, and {process_set} has some of them; leave one out", key="switch"
        )
    return Members(runtime, process_set)
