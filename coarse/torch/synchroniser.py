"""Who combines buckets over all ranks: one small protocol, and memory devices behind it."""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from coarse.client.handle import Handle
from coarse.messages import Descriptor
from coarse.session import current, is_initialized

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


class Synchroniser(Protocol):
    """Combines buckets in place. All ranks start the same buckets equally often."""

    def memory_of(self, descriptor: Descriptor) -> np.ndarray:
        """The flat memory of a bucket, zeros at first; buckets are made in order of their index."""
        ...

    def start(self, index: int) -> None:
        """A bucket's contribution is complete; nobody may touch its memory until `wait`."""
        ...

    def wait(self, index: int) -> None:
        """Return once the bucket's memory holds the combined values."""
        ...

    def begin_round(self) -> None:
        """All buckets have been waited for; each will be started again."""
        ...

    def close(self) -> None:
        """No bucket will be started any more."""
        ...


class DeviceSynchroniser:
    """Buckets that live in device memory: starting one writes a record, and moves no bytes."""

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
        self._handles[index] = Handle(client, client.push(descriptor, None), array)

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


def synchroniser_of(runtime: "Runtime") -> Synchroniser:
    """The one that the configuration's mode asks for."""
    if runtime.config.mode != "allreduce":
        return DeviceSynchroniser()
    from coarse.torch.allreduce import AllreduceSynchroniser  # the one face that calls MPI

    client = runtime.require_client()
    return AllreduceSynchroniser(runtime.worker_comm, client.link, client.count_push)
