"""What carries messages between memory devices, whichever way they go."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np


class DeviceTransport(Protocol):
    """Tagged messages between devices; only the thread of a device's service calls it.

    What one device sends to another comes in its order, whatever the tags.
    """

    @property
    def carries_features(self) -> bool:
        """Whether messages of features may go this way."""
        ...

    @property
    def sent_bytes(self) -> list[int]:
        """By device that they went to."""
        ...

    @property
    def received_bytes(self) -> list[int]:
        """By device that they came from."""
        ...

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Start sending (n,) uint8 to a device; the buffer must not be changed afterwards."""
        ...

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Whatever has come: (device it is from, tag, its bytes)."""
        ...

    def take_lost(self) -> list[int]:
        """Devices that were found dead since the last call, where this way tells."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a message is under way, to another device or from one."""
        ...

    @property
    def has_unwritten(self) -> bool:
        """Whether messages to other devices wait for this one to send them, and would be lost with it."""
        ...

    def close(self) -> None:
        """Say that nothing more is sent."""
        ...
