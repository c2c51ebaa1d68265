"""The part of a feature on a live memory device that acts, and what it may ask of the device's service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from coarse.protocol.clock import Clock
from coarse.protocol.plan import Placement
from coarse.proxy.feature import Steps
from coarse.storage.region import DeviceMemory
from coarse.transport.mailbox import Mailbox


@dataclass(frozen=True, kw_only=True)
class ServiceKit:
    """Requests of a feature's executor to the service that it is a part of."""

    device: int
    placement: Placement
    clock: Clock
    memories: Mapping[int, DeviceMemory]
    """Memory of each device of this node, this device's own among them."""
    sleeper: Mailbox
    """Ends the service's sleep when a descriptor is readable (`wake_on`, `ignore`)."""
    wake: Callable[[], None]
    """Ends the service's sleep now; any thread may call it."""
    carry_out: Callable[[Steps], None]
    """In the service's thread alone: in carriers, `poll`, `work` and `on_message`."""
    can_send: bool
    """False where devices of this job send one another nothing: one node without rings."""
    give: Callable[[int, int, np.ndarray], None]
    """Sends (n,) uint8 to a device, as `send` does, that nobody changes or frees any more; it is not copied."""

    def send(self, device: int, number: int, payload: np.ndarray) -> None:
        """Send a copy of (n,) uint8 to a device as a message of a number from 0 to 7, for `on_message` there.

        Raises:
            UnsupportedError: devices of this job send none (`can_send`).
        """
        self.give(device, number, payload.copy())

    @property
    def memory(self) -> DeviceMemory:
        """Return this device's own memory."""
        return self.memories[self.device]

    @property
    def num_devices_here(self) -> int:
        """Count the memory devices of this node."""
        return len(self.placement.devices_on(self.placement.device_nodes[self.device]))


class FeatureExecutor:
    """Carries out a machine's instructions. All but what it does in threads of its own runs in the service's thread."""

    carriers: Mapping[type, Callable[[Any], None]] = MappingProxyType({})
    """Function that carries out an instruction, by its class."""
    context: Any = None
    """State in which the steps of one event are carried out; set again by a driver that carries them out later."""

    def on_message(self, device: int, number: int, payload: np.ndarray) -> None:
        """Take what another device has sent; the array is this executor's own."""
        raise NotImplementedError(f"{type(self).__name__} was sent a message, and has no on_message")

    def poll(self) -> bool:
        """Have carried out what follows from what has ended or come, and never wait; True if anything came by ways
        of the feature's own, so that the service had better look again soon."""
        return False

    def work(self) -> None:
        """Do one piece of background work."""

    @property
    def is_pending(self) -> bool:
        """True if something is under way that the service must not end before."""
        return False

    @property
    def has_work(self) -> bool:
        """True if `work` has something to do when nothing is to be summed."""
        return False

    @property
    def has_urgent_work(self) -> bool:
        """True if somebody waits for what `work` does, so that it goes before sums."""
        return False

    def longest_sleep_s(self, otherwise_s: float) -> float:
        """Return how many seconds the service may sleep, `otherwise_s` at most."""
        return otherwise_s

    def statistics(self) -> Mapping[str, float]:
        """Return the feature's counters, for `coarse.statistics`."""
        return {}

    def carried(self, device: int) -> tuple[int, int]:
        """Count bytes sent to a device, and received from it, by ways of the feature's own."""
        return 0, 0

