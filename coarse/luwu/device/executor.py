"""Executor of models in the network on a live memory device: work on folders, links to other devices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coarse.luwu.device.folder_work import FolderWork
from coarse.luwu.device.links import PACKETS, TreeLinks
from coarse.luwu.device.models import DeviceModels
from coarse.proxy.executor import FeatureExecutor, ServiceKit


class LuwuExecutor(FeatureExecutor):
    """Executor of a DeviceModels."""

    def __init__(self, models: DeviceModels, kit: ServiceKit) -> None:
        self._carry_out = kit.carry_out
        self._work = FolderWork(models, kit.memory, kit.wake, kit.clock, kit.num_devices_here)
        self._links = TreeLinks(
            models, kit.memory, kit.device, kit.give if kit.can_send else None, kit.sleeper, kit.clock,
            self._work.take_looked,
        )  # fmt: skip
        self.carriers: dict[type, Callable[[Any], None]] = self._work.carriers | self._links.carriers

    def on_message(self, device: int, number: int, payload: np.ndarray) -> None:
        """Take a frame of a tree, or values that a worker of this host looks at."""
        if number == PACKETS:
            self._links.on_packets(device, payload, self._carry_out)
        else:
            self._carry_out(self._links.on_looked(payload))

    def poll(self) -> bool:
        """Carry out the steps that follow from work that is done, and from frames that came by datagrams."""
        self._carry_out(self._work.take_results())
        return self._links.take(self._carry_out)

    def longest_sleep_s(self, otherwise_s: float) -> float:
        """Return the seconds for which there is no work unless something comes."""
        return self._links.longest_sleep_s(otherwise_s)

    def carried(self, device: int) -> tuple[int, int]:
        """Return the bytes of datagrams sent to a device and received from it."""
        return self._links.carried(device)


def executor_of(models: DeviceModels, kit: ServiceKit) -> LuwuExecutor:
    """Make a device's executor of models in the network."""
    return LuwuExecutor(models, kit)
