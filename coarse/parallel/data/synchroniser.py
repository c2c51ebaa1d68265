"""Who combines buckets over all ranks: one small protocol, and memory devices behind it."""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from coarse.client.handle import Handle
from coarse.protocol.config import FixedRouting
from coarse.protocol.records import Descriptor
from coarse.session import current, is_initialized

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.pass_timer import PassTimer
    from coarse.parallel.data.split_chooser import DualSync
    from coarse.runtime import Runtime


class Synchroniser(Protocol):
    """Combines buckets in place. All ranks start the same buckets equally often."""

    @property
    def timer(self) -> "PassTimer | None":
        """What wants to know when gradients come."""
        ...

    @property
    def dual_sync(self) -> "DualSync | None":
        """What was measured and decided; None where there was nothing to decide so far."""
        ...

    def memory_of(self, descriptor: Descriptor) -> np.ndarray:
        """The flat memory of a bucket, zeros at first; buckets are made in order of their index."""
        ...

    def start(self, index: int) -> None:
        """A bucket's contribution is complete; nobody may touch its memory until `wait`."""
        ...

    def recall(self, index: int) -> bool:
        """Take back a contribution that nobody has touched yet; False where that is too late."""
        ...

    def all_started(self) -> None:
        """Every bucket of the round has been started, and is about to be waited for; may be said again."""
        ...

    def wait(self, index: int) -> None:
        """Return once the bucket's memory holds the combined values."""
        ...

    def begin_round(self) -> None:
        """All buckets have been waited for; each will be started again. After a StallError it is called again."""
        ...

    def close(self) -> None:
        """No bucket will be started any more."""
        ...


class DeviceSynchroniser:
    """Buckets that live in device memory: starting one writes a record, and moves no bytes."""

    timer = None
    dual_sync = None

    def __init__(self) -> None:
        self._buckets: list[tuple[Descriptor, np.ndarray]] = []
        self._handles: dict[int, Handle] = {}

    def memory_of(self, descriptor: Descriptor) -> np.ndarray:
        """See Synchroniser."""
        array = current().require_client().device_array(descriptor)
        self._buckets.append((descriptor, array))
        return array

    def start(self, index: int) -> None:
        """See Synchroniser."""
        client = current().require_client()
        descriptor, array = self._buckets[index]
        self._handles[index] = client.push_pull(descriptor, None, array)

    def recall(self, index: int) -> bool:
        """See Synchroniser: a device may be adding it."""
        return False

    def all_started(self) -> None:
        """See Synchroniser."""

    def wait(self, index: int) -> None:
        """See Synchroniser."""
        self._handles[index].wait()

    def begin_round(self) -> None:
        """See Synchroniser."""

    def close(self) -> None:
        """See Synchroniser; the devices get their memory back once all workers have closed theirs."""
        buckets, self._buckets = self._buckets, []
        if is_initialized():
            for descriptor, _ in buckets:
                current().require_client().forget(descriptor.name)


def synchroniser_of(runtime: "Runtime", prefix: str) -> Synchroniser:
    """The one that the configuration's mode and policy ask for; `prefix` stands before its keys' names."""
    mode = runtime.config.mode
    if mode != "allreduce" and not times_rounds(runtime):
        return DeviceSynchroniser()
    from coarse.parallel.data.allreduce import AllreduceSynchroniser  # what calls MPI, and what decides by simulation
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.parallel.data.dual import DualSynchroniser
    from coarse.parallel.data.split_chooser import SplitChooser

    client = runtime.require_client()
    stream = AllreduceStream(runtime.worker_comm, client.link)
    if mode == "allreduce":
        return AllreduceSynchroniser(stream, client.machine.client, client.count_push)
    return DualSynchroniser(runtime, stream, SplitChooser(runtime, stream, prefix), prefix)


def times_rounds(runtime: "Runtime") -> bool:
    """Whether synchronisers have a timer, which wants to know when gradients come."""
    return runtime.config.mode == "coarse" and bool(may_share(runtime) or profile_every_steps(runtime))


def may_share(runtime: "Runtime") -> bool:
    """Whether there are workers that could sum a part, and the policy lets them."""
    return runtime.config.policy != "devices" and runtime.placement.num_clients > 1


def profile_every_steps(runtime: "Runtime") -> int | None:
    """After how many steps routes are to be measured again; None for never."""
    routing = runtime.config.routing
    return None if isinstance(routing, FixedRouting) else routing.profile_every_steps
