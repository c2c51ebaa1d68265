"""Reducers, which combine buckets over all ranks: one small protocol, and memory devices behind it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from coarse.errors import InFlightError
from coarse.gpu.interface import is_on_gpu
from coarse.protocol.records import Descriptor
from coarse.session import is_initialized
from coarse.strategy.strategy import Strategy

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.client.client import Client
    from coarse.parallel.data.pass_timer import PassTimer
    from coarse.runtime import Runtime
    from coarse.simulation.live_split import MeasuredStep, MeasuredWays


@dataclass(frozen=True, kw_only=True)
class DualSync:
    """Measurements and decisions of an optimizer's first steps, or of those since it was last profiled."""

    policy: str
    num_buckets: int
    num_to_devices: int
    """Number of buckets that the devices sum. In the policies of the mode coarse they are the first in the order of
    backward."""
    nbytes: int
    """Bytes of all buckets: the paper's n."""
    bytes_to_devices: int
    """Bytes that the devices sum: the paper's m."""
    step: "MeasuredStep"
    """Times T_FP, T_BP, of the whole step and of complete buckets, while all went to the devices."""
    ways: "MeasuredWays"
    simulated_s: float
    """Seconds of an iteration with the split that the policy chose (kind: simulated)."""
    simulated_all_s: float
    """Seconds of an iteration with all buckets on the devices (kind: simulated)."""
    num_tried: int | None = None
    """Split that "auto" tried for a few steps because it simulated faster; None if none did."""
    tried_step_s: float | None = None
    """Seconds of a step with that split; it was kept if this is below `step.step_s`."""
    kind: str = "measured"
    """Kind of all seconds but the two simulated ones."""


class Flight(Protocol):
    """Flight of a started bucket: a device's handle, or a job of the workers' stream.

    It knows how far it is.
    """

    def wait(self) -> object:
        """Return once the bucket's memory holds the combined values; after a StallError it may be called again."""
        ...


class QueuedFlight:
    """Flight that sets out later, with others."""

    def __init__(self, refusal: str) -> None:
        """Wait for the start; `refusal` says why a wait before that would never end."""
        self._refusal = refusal
        self.started: Flight | None = None

    def wait(self) -> None:
        """Wait for the bucket; InFlightError if it has not set out."""
        if self.started is None:
            raise InFlightError(self._refusal)
        self.started.wait()


class Rounds(Protocol):
    """Part of a reducer that is told of rounds, in each of which every bucket is started."""

    def all_started(self) -> None:
        """Note that every bucket of the round has been started, and is about to be waited for.

        It may be called again.
        """
        ...

    def begin_round(self) -> None:
        """Note that all buckets have been waited for; each will be started again.

        After a StallError it is called again.
        """
        ...


class Reducer(Protocol):
    """Reducer that combines buckets in place; all ranks start the same buckets equally often."""

    @property
    def rounds(self) -> Rounds | None:
        """Part that is told of rounds; None if each bucket goes its own way."""
        ...

    @property
    def timer(self) -> "PassTimer | None":
        """Timer that is told when gradients come."""
        ...

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions; None if there was nothing to decide so far."""
        ...

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first; buckets are made in order of their index.

        Of its last `num_exact` elements all values are wanted, and of this round, in whatever form the others travel.
        """
        ...

    @property
    def takes_gpus(self) -> bool:
        """True if `use` may be called."""
        ...

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Take a bucket's flat memory on a GPU, zeros at first, in place of `memory_of`."""
        ...

    def start(self, index: int) -> Flight:
        """Start a bucket, whose contribution is complete.

        Its memory may not be touched until the flight was waited for.
        """
        ...

    def cancel(self, index: int) -> bool:
        """Take back a contribution that no other has touched yet, and return whether that was possible."""
        ...

    def drop(self) -> None:
        """Forget all buckets, between two rounds on all ranks; others may be made, from index 0."""
        ...

    def close(self) -> None:
        """Close the reducer: no bucket will be started any more."""
        ...


class DeviceReducer:
    """Reducer of buckets in device memory: starting one writes a record, and moves no bytes.

    Those on a GPU are copied to devices and back, in place, by streams.
    """

    takes_gpus = True

    def __init__(self, client: "Client", timer: "PassTimer | None" = None) -> None:
        self.timer = timer
        self._client = client
        self._buckets: list[tuple[Descriptor, np.ndarray | None, np.ndarray]] = []
        """(Descriptor, array to be copied if it is on a GPU, array) of each bucket, by index."""

    @property
    def rounds(self) -> Rounds | None:
        """Part that is told of rounds: None, since each bucket goes its own way."""
        return None

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions: None, since nothing is decided."""
        return None

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first, in device memory."""
        array = self._client.host_array(descriptor)
        self.use(descriptor, array)
        return array

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Take a bucket's flat memory."""
        is_copied = is_on_gpu(array)
        self._buckets.append((descriptor, array if is_copied else None, array))

    def start(self, index: int) -> Flight:
        """Push a bucket, whose contribution is complete."""
        descriptor, copied, array = self._buckets[index]
        return self._client.push_pull(descriptor, copied, array)

    def cancel(self, index: int) -> bool:
        """Return False: a device may be adding the bucket."""
        return False

    def drop(self) -> None:
        """Forget all buckets; the devices get their memory back once all workers have dropped theirs."""
        buckets, self._buckets = self._buckets, []
        if is_initialized():
            for descriptor, *_ in buckets:
                self._client.deregister(descriptor.name)

    def close(self) -> None:
        """Drop all buckets; none will be started any more."""
        self.drop()


def may_share(runtime: "Runtime", strategy: Strategy) -> bool:
    """Return whether there are workers that could sum a part, and the strategy lets them."""
    return strategy.shares and runtime.placement.num_clients > 1


class ReducerSource:
    """Source of reducers of all workers' buckets in place of the strategy's, such as a switch."""

    @property
    def block_elements(self) -> int:
        """Number of the elements that share a precision, so that a large one takes the others'; 1: none do."""
        return 1

    def reducer(self, runtime: "Runtime") -> Reducer:
        """Return the reducer that sums the buckets of this worker."""
        raise NotImplementedError
