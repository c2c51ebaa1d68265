"""Who combines buckets over all ranks: one small protocol, and memory devices behind it."""

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
    """What the first steps of an optimizer, or those since it was last profiled, measured and decided."""

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
    """What "auto" tried for a few steps because it simulated faster; None where nothing did."""
    tried_step_s: float | None = None
    """A step with that; it was kept if this is below `step.step_s`."""
    kind: str = "measured"
    """Of all seconds but the two simulated ones."""


class Flight(Protocol):
    """What was started: a device's handle, or a job of the workers' stream. It knows how far it is."""

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
        """See Flight; InFlightError where it has not set out."""
        if self.started is None:
            raise InFlightError(self._refusal)
        self.started.wait()


class Rounds(Protocol):
    """What a reducer has to know of rounds, in each of which every bucket is started."""

    def all_started(self) -> None:
        """Every bucket of the round has been started, and is about to be waited for; may be said again."""
        ...

    def begin_round(self) -> None:
        """All buckets have been waited for; each will be started again. After a StallError it is called again."""
        ...


class Reducer(Protocol):
    """Combines buckets in place. All ranks start the same buckets equally often."""

    @property
    def rounds(self) -> Rounds | None:
        """Who is told of rounds; None where each bucket goes its own way."""
        ...

    @property
    def timer(self) -> "PassTimer | None":
        """What wants to know when gradients come."""
        ...

    @property
    def dual_sync(self) -> DualSync | None:
        """What was measured and decided; None where there was nothing to decide so far."""
        ...

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """The flat memory of a bucket, zeros at first; buckets are made in order of their index. Of its last
        `num_exact` elements all values are wanted, and of this round, whatever travels of the others."""
        ...

    @property
    def takes_gpus(self) -> bool:
        """Whether `use` may be called."""
        ...

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Take a bucket's flat memory on a GPU, zeros at first, in place of `memory_of`."""
        ...

    def start(self, index: int) -> Flight:
        """A bucket's contribution is complete; nobody may touch its memory until the flight was waited for."""
        ...

    def cancel(self, index: int) -> bool:
        """Take back a contribution that nobody has touched yet; False where that is too late."""
        ...

    def drop(self) -> None:
        """Forget all buckets, between two rounds on all ranks; others may be made, from index 0."""
        ...

    def close(self) -> None:
        """No bucket will be started any more."""
        ...


class DeviceReducer:
    """Buckets that live in device memory: starting one writes a record, and moves no bytes. Those on a GPU are copied
    to devices and back, in place, by streams."""

    takes_gpus = True

    def __init__(self, client: "Client", timer: "PassTimer | None" = None) -> None:
        self.timer = timer
        self._client = client
        self._buckets: list[tuple[Descriptor, np.ndarray]] = []

    @property
    def rounds(self) -> Rounds | None:
        """See Reducer."""
        return None

    @property
    def dual_sync(self) -> DualSync | None:
        """See Reducer: there is nothing to decide."""
        return None

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """See Reducer."""
        array = self._client.host_array(descriptor)
        self.use(descriptor, array)
        return array

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """See Reducer."""
        self._buckets.append((descriptor, array))

    def start(self, index: int) -> Flight:
        """See Reducer."""
        descriptor, array = self._buckets[index]
        is_copied = is_on_gpu(array)
        return self._client.push_pull(descriptor, array if is_copied else None, array)

    def cancel(self, index: int) -> bool:
        """See Reducer: a device may be adding it."""
        return False

    def drop(self) -> None:
        """See Reducer; the devices get their memory back once all workers have dropped theirs."""
        buckets, self._buckets = self._buckets, []
        if is_initialized():
            for descriptor, _ in buckets:
                self._client.deregister(descriptor.name)

    def close(self) -> None:
        """See Reducer and drop."""
        self.drop()


def may_share(runtime: "Runtime", strategy: Strategy) -> bool:
    """Whether there are workers that could sum a part, and the strategy lets them."""
    return strategy.shares and runtime.placement.num_clients > 1


class ReducerSource:
    """What sums buckets of all workers in place of what the strategy says, such as a switch."""

    @property
    def block_elements(self) -> int:
        """Count the elements that share a precision, so that a large one takes the others'; 1: none do."""
        return 1

    def reducer(self, runtime: "Runtime") -> Reducer:
        """Return what sums the buckets of this worker."""
        raise NotImplementedError
