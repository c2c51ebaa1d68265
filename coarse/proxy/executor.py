"""Acting part of a feature on a live memory device, and its requests to the device's service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from coarse.protocol.clock import Clock
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instructions
from coarse.storage.region import DeviceMemory
from coarse.transport.mailbox import Mailbox


@dataclass(frozen=True, kw_only=True)
class ServiceKit:
    """Requests of a feature's executor to the service that it is a part of."""

    device: int
    placement: Placement
    clock: Clock
    memories: Mapping[int, DeviceMemory]
    """Memory of each device of this node, including this device's own."""
    sleeper: Mailbox
    """Mailbox that ends the service's sleep when a descriptor is readable (`wake_on`, `ignore`)."""
    wake: Callable[[], None]
    """Function that ends the service's sleep now; any thread may call it."""
    carry_out: Callable[[Instructions], None]
    """Function that carries out instructions; call it in the service's thread alone: in carriers, `poll`, `work` and
    `on_message`."""
    can_send: bool
    """False if devices of this job send each other no messages: one node without rings."""
    give: Callable[[int, int, np.ndarray], None]
    """Function that sends (n,) uint8 to a device as `send` does, without a copy; the array must not be changed or freed
    any more."""

    def send(self, device: int, number: int, payload: np.ndarray) -> None:
        """Send a copy of (n,) uint8 to a device as a message of a number from 0 to 7, for `on_message` there.

        Raises:
            UnsupportedError: devices of this job send none (`can_send`).
        """
        self.give(device, number, payload.copy())

    @property
    def memory(self) -> DeviceMemory:
        """Memory of this device itself."""
        return self.memories[self.device]

    @property
    def num_devices_here(self) -> int:
        """Number of memory devices of this node."""
        return len(self.placement.devices_on(self.placement.device_nodes[self.device]))


class FeatureExecutor:
    """Executor of a machine's instructions.

    Everything but what it does in threads of its own runs in the service's thread.
    """

    carriers: Mapping[type, Callable[[Any], None]] = MappingProxyType({})
    """Function that carries out an instruction, by its class."""
    context: Any = None
    """State in which the steps of one event are carried out; a driver that carries them out later sets it again."""

    def on_message(self, device: int, number: int, payload: np.ndarray) -> None:
        """Process a message of another device; the array is this executor's own."""
        raise NotImplementedError(f"{type(self).__name__} was sent a message, and has no on_message")

    def poll(self) -> bool:
        """Carry out what follows from what has ended or arrived, and never wait.

        Return whether anything arrived by the feature's own channels, so that the service should look again soon.
        """
        return False

    def work(self) -> None:
        """Do one piece of background work."""

    @property
    def is_pending(self) -> bool:
        """True if something is under way that must end before the service does."""
        return False

    @property
    def has_work(self) -> bool:
        """True if `work` has something to do while no sum is due."""
        return False

    @property
    def has_urgent_work(self) -> bool:
        """True if a worker waits for the result of `work`, so that it goes before sums."""
        return False

    def longest_sleep_s(self, otherwise_s: float) -> float:
        """Return how many seconds the service may sleep, `otherwise_s` at most."""
        return otherwise_s

    def statistics(self) -> Mapping[str, float]:
        """Return the feature's counters, for `coarse.statistics`."""
        return {}

    def carried(self, device: int) -> tuple[int, int]:
        """Return the bytes sent to a device and received from it by the feature's own channels."""
        return 0, 0

