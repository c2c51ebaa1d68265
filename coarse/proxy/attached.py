"""Features attached to a live memory device: their executors, and errors that name the feature."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from coarse.errors import CoarseError, UnsupportedError
from coarse.protocol.clock import Clock
from coarse.protocol.features import kind_of_message, part_of, spec_of, tag_of
from coarse.protocol.plan import Placement
from coarse.proxy.device import Device
from coarse.proxy.executor import FeatureExecutor, ServiceKit
from coarse.proxy.feature import FeatureMachine, asked
from coarse.proxy.protocol import ProxyProtocol
from coarse.storage.region import DeviceMemory
from coarse.transport.mailbox import Mailbox

_SAID_AFTER_S = 30.0
"""Seconds that a device stays for a feature after all workers have left before it prints so."""
SendMessage = Callable[[int, int, np.ndarray], None]
"""Function that sends (n,) uint8 to a device under a tag; the array is not changed any more."""


class AttachedFeatures:
    """Attached features of one device.

    All of it runs in the service's thread.
    """

    def __init__(
        self,
        protocol: ProxyProtocol,
        placement: Placement,
        device: Device,
        memories: Mapping[int, DeviceMemory],
        clock: Clock,
        mailbox: Mailbox,
        wake: Callable[[], None],
        send: SendMessage | None,
    ) -> None:
        """Take the parts of the device's service.

        `send` is None where messages of features cannot go to other devices.
        """
        self._protocol = protocol
        self._number = protocol.device
        self._placement = placement
        self._device = device
        self._memories = memories
        self._clock = clock
        self._mailbox = mailbox
        self._wake = wake
        self._send = send
        self._executors: dict[str, FeatureExecutor] = {}
        self._alone_since_s: float | None = None
        protocol.on_attached = self._on_attached

    def poll(self) -> bool:
        """Have each executor carry out what has ended or arrived.

        Return whether anything arrived by a feature's own channels.
        """
        has_come = False
        for name, executor in [*self._executors.items()]:
            has_come |= asked(name, self._number, executor.poll)
        return has_come

    @property
    def is_urgent(self) -> bool:
        """True if a worker waits for a feature's background work."""
        return any(one.has_urgent_work for one in self._executors.values())

    @property
    def has_work(self) -> bool:
        """True if a feature has background work."""
        return any(one.has_work for one in self._executors.values())

    def work(self) -> None:
        """Do one piece of background work, first that of a feature with urgent work."""
        busy = [(name, one) for name, one in self._executors.items() if one.has_work]
        name, first = next((pair for pair in busy if pair[1].has_urgent_work), busy[0])
        asked(name, self._number, first.work)

    def keep(self, *, are_all_gone: bool) -> bool:
        """Return whether a feature has something under way.

        Print its name to stderr once the workers have all been gone for `_SAID_AFTER_S`.
        """
        names = [name for name, one in self._executors.items() if one.is_pending]
        if are_all_gone and names:
            now_s = self._clock.now_s()
            if self._alone_since_s is None:
                self._alone_since_s = now_s
            elif now_s - self._alone_since_s > _SAID_AFTER_S:
                self._alone_since_s = float("inf")
                print(
                    f"coarse: all workers have left, and memory device {self._number} stays for the features {names}, "
                    "which have something under way (is_pending)",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
        return bool(names)

    def on_message(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Deliver a message that another device's executor has sent.

        Raises:
            CoarseError: the feature has no executor.
        """
        name, number = kind_of_message(tag)
        self._device.carry_out(self._protocol.attach(name))
        executor = self._executors.get(name)
        if executor is None:
            raise CoarseError(f"a message of the feature {name!r} came, which has no executor; name one in its spec")
        asked(name, self._number, executor.on_message, source, number, payload)

    def longest_sleep_s(self, otherwise_s: float) -> float:
        """Return how many seconds the service may sleep."""
        for executor in self._executors.values():
            otherwise_s = executor.longest_sleep_s(otherwise_s)
        return otherwise_s

    def statistics(self) -> dict[str, float]:
        """Return the counters of all features."""
        return {key: float(value) for one in self._executors.values() for key, value in one.statistics().items()}

    def carried(self, device: int) -> tuple[int, int]:
        """Return the bytes sent to a device and received from it by features' own channels."""
        counts = [one.carried(device) for one in self._executors.values()]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def _on_attached(self, name: str, machine: FeatureMachine) -> None:
        """Make the executor of a feature whose first record has arrived."""
        reference = spec_of(name).executor
        if not reference:
            return
        kit = ServiceKit(
            device=self._number,
            placement=self._placement,
            clock=self._clock,
            memories=self._memories,
            sleeper=self._mailbox,
            wake=self._wake,
            carry_out=partial(self._device.carry_out_of, name),
            can_send=self._send is not None,
            give=partial(self._give, name),
        )
        executor: FeatureExecutor = asked(name, self._number, part_of(reference), machine, kit)
        carriers = {kind: partial(asked, name, self._number, carry) for kind, carry in executor.carriers.items()}
        self._executors[name] = executor
        self._device.add_feature(name, machine, executor, carriers)

    def _give(self, name: str, device: int, number: int, payload: np.ndarray) -> None:
        if self._send is None:
            raise UnsupportedError(
                f"the feature {name!r} sends a message to memory device {device}, and devices of this job send one "
                "another none (one node); ask can_send first"
            )
        self._send(device, tag_of(name, number), payload)
