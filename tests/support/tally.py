"""A feature of somebody else's: a worker tells its device a number, devices add them up and tell all workers.

Each device keeps the sum of its own workers' numbers; its executor sends it to the others as a message.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from coarse.client.client import Client
from coarse.client.protocol import ToDevice
from coarse.protocol.codec import register_records
from coarse.protocol.costs import Costs, free
from coarse.protocol.features import FeatureSpec
from coarse.proxy.executor import FeatureExecutor, ServiceKit
from coarse.proxy.feature import DeviceKit, FeatureMachine
from coarse.proxy.instructions import Instructions, Send

SPEC = FeatureSpec(
    name="tally",
    records="tests.support.tally:RECORDS",
    machine="tests.support.tally:Tally",
    executor="tests.support.tally:Teller",
    costs="tests.support.tally:COSTS",
)
WITHOUT_COSTS = replace(SPEC, costs="")


class Count(NamedTuple):
    """A worker's number, to its device."""

    client: int
    number: int


class Total(NamedTuple):
    """The sum of one device, to a worker."""

    device: int
    number: int


class Gone(NamedTuple):
    """To a worker: who has left, and who has died, as far as the device was told."""

    left: tuple[int, ...]
    dead: tuple[int, ...]


RECORDS: tuple[type, ...] = (Count, Total, Gone)
register_records("tally", RECORDS)


class Tell(NamedTuple):
    """Have all devices tell their workers this device's sum."""

    number: int


COSTS: Costs = dict.fromkeys((*RECORDS, Tell), free)
"""What its messages take is charged by their bytes."""


class Tally(FeatureMachine):
    """One device's sum."""

    def __init__(self, kit: DeviceKit) -> None:
        self.device, self.placement = kit.device, kit.placement
        self.left: list[int] = []
        self.dead: list[int] = []
        self._counted: dict[int, int] = {}
        self.handlers = {Count: self._on_count}

    @property
    def own(self) -> list[int]:
        """Workers whose device it is."""
        return [client for client, device in enumerate(self.placement.local_proxies) if device == self.device]

    def on_leave(self, client: int) -> Instructions:
        self.left.append(client)
        return []

    def on_dead(self, rank: int, text: str) -> Instructions:
        self.dead.append(rank)
        return []

    def on_total(self, device: int, number: int) -> Instructions:
        """A device has said its sum."""
        return [Send(client, Total(device, number)) for client in self.own]

    def _on_count(self, count: Count) -> Instructions:
        self._counted[count.client] = count.number
        steps: Instructions = [Send(count.client, Gone(tuple(self.left), tuple(self.dead)))]
        if set(self._counted) | set(self.left) >= set(self.own):
            steps.append(Tell(sum(self._counted.values())))
        return steps


class Teller(FeatureExecutor):
    """Sends a device's sum as a message of eight bytes."""

    def __init__(self, machine: Tally, kit: ServiceKit) -> None:
        self._machine, self._kit = machine, kit
        self.carriers = {Tell: self._tell}

    def on_message(self, device: int, number: int, payload: np.ndarray) -> None:
        assert number == 3
        self._kit.carry_out(self._machine.on_total(device, int(payload.view(np.int64)[0])))

    def statistics(self) -> dict[str, float]:
        return {"tallied": 1.0}

    def _tell(self, tell: Tell) -> None:
        payload = np.array([tell.number]).view(np.uint8)
        for device in range(self._machine.placement.num_devices):
            if device != self._kit.device:
                self._kit.send(device, 3, payload)
        self._kit.carry_out(self._machine.on_total(self._kit.device, tell.number))


class Counting:
    """A worker's part."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.totals: dict[int, int] = {}
        self.gone: list[Gone] = []
        client.protocol.listen(Total, lambda total: self.totals.__setitem__(total.device, total.number))
        client.protocol.listen(Gone, self.gone.append)

    def count(self, number: int) -> Any:
        """Tell this worker's device a number."""
        protocol = self._client.protocol
        self._client.link.tell([ToDevice(protocol.local_proxy, Count(protocol.client, number))])

    def wait(self, num_devices: int) -> dict[int, int]:
        """By device its sum, once all have told theirs."""
        self._client.link.wait_for(lambda: len(self.totals) == num_devices, 30.0, "the devices' sums")
        return self.totals
