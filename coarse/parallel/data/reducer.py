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
    """Buckets that the devices sum, in the policies of the mode coarse the first in the order of backward."""
    nbytes: int
    """Bytes of all buckets: the paper's n."""
    bytes_to_devices: int
    """The paper's m."""
    step: "MeasuredStep"
    """T_FP, T_BP, the whole step and when buckets were complete, while all went to the devices."""
    ways: "MeasuredWays"
    simulated_s: float
    """An iteration with the split that the policy chose (kind: simulated)."""
    simulated_all_s: float
    """An iteration with all buckets on the devices (kind: simulated)."""
    num_tried: int | None = None
    """Number of buckets that "auto" tried for a few steps because it simulated faster; None if nothing did."""
    tried_step_s: float | None = None
    """A step with that; it was kept if this is below `step.step_s`."""
    kind: str = "measured"
    """Kind of all seconds but the two simulated ones."""


class Flight(Protocol):
    """Operation that was started: a device's handle, or a job of the workers' stream. It knows how far it is."""

    def wait(self) -> object:
        """Return once the bucket's memory holds the combined values; after a StallError it may be called again."""
        ...


class QueuedFlight:
    """One that sets out later, with others."""

    def __init__(self, refusal: str) -> None:
        """`refusal` says why a wait before that would never end."""
        self._refusal = refusal
        self.started: Flight | None = None

    def wait(self) -> None:
        """Wait for the result; InFlightError if it has not set out."""
        if self.started is None:
            raise InFlightError(self._refusal)
        self.started.wait()


class Rounds(Protocol):
    """Part of a reducer that has to know of rounds, in each of which every bucket is started."""

    def all_started(self) -> None:
        """Note that every bucket of the round has been started, and is about to be waited for; may be repeated."""
        ...

    def begin_round(self) -> None:
        """Begin a round, once all buckets have been waited for; after a StallError it is called again."""
        ...


class Reducer(Protocol):
    """Combines buckets in place. All ranks start the same buckets equally often."""

    @property
    def rounds(self) -> Rounds | None:
        """Listener that is told of rounds; None if each bucket goes its own way."""
        ...

    @property
    def timer(self) -> "PassTimer | None":
        """Timer that wants to know when gradients come."""
        ...

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions; None while there was nothing to decide."""
        ...

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first; buckets are made in order of their index.

        All values of its last `num_exact` elements are wanted, and of this round, for any wire that the others have.
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
        """Start a bucket whose contribution is complete; its memory is left alone until the flight was waited for."""
        ...

    def cancel(self, index: int) -> bool:
        """Take back a contribution that no rank has touched yet; False if that is too late."""
        ...

    def drop(self) -> None:
        """Forget all buckets, between two rounds on all ranks; others may be made, from index 0."""
        ...

    def close(self) -> None:
        """Close the reducer: no bucket will be started any more."""
        ...


class DeviceReducer:
    """Reducer of buckets that live in device memory: starting one writes a record, and moves no bytes.

    Those on a GPU are copied to devices and back, in place, by streams.
    """

    takes_gpus = True

    def __init__(self, client: "Client", timer: "PassTimer | None" = None) -> None:
        self.timer = timer
        self._client = client
        self._buckets: list[tuple[Descriptor, np.ndarray]] = []

    @property
    def rounds(self) -> Rounds | None:
        """Rounds that are to be told (`Reducer.rounds`)."""
        return None

    @property
    def dual_sync(self) -> DualSync | None:
        """Measurements and decisions (`Reducer.dual_sync`): None, since there are none."""
        return None

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket (`Reducer.memory_of`)."""
        array = self._client.host_array(descriptor)
        self.use(descriptor, array)
        return array

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Use an array as a bucket's memory (`Reducer.use`)."""
        self._buckets.append((descriptor, array))

    def start(self, index: int) -> Flight:
        """Start a bucket (`Reducer.start`)."""
        descriptor, array = self._buckets[index]
        is_copied = is_on_gpu(array)
        return self._client.push_pull(descriptor, array if is_copied else None, array)

    def cancel(self, index: int) -> bool:
        """Take back a contribution (`Reducer.cancel`): False, since a device may be adding it."""
        return False

    def drop(self) -> None:
        """Drop all buckets; the devices get their memory back once all workers have dropped theirs."""
        buckets, self._buckets = self._buckets, []
        if is_initialized():
            for descriptor, _ in buckets:
                self._client.deregister(descriptor.name)

    def close(self) -> None:
        """Close the reducer, and drop its buckets."""
        self.drop()


def may_share(runtime: "Runtime", strategy: Strategy) -> bool:
    """Return whether there are workers that could sum a part, and the strategy lets them."""
    return strategy.shares and runtime.placement.num_clients > 1


class ReducerSource:
    """Source of a reducer that sums buckets of all workers in the strategy's place, such as a switch."""

    @property
    def block_elements(self) -> int:
        """Count the elements that share a precision, so that a large one takes the others'; 1: none do."""
        return 1

    def reducer(self, runtime: "Runtime") -> Reducer:
        """Return what sums the buckets of this worker."""
        raise NotImplementedError
