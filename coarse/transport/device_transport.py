"""Carrier of messages between memory devices, of any way that they go, and its possible parts."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from coarse.errors import ConfigError


class DeviceTransport(Protocol):
    """Tagged messages between devices; only the thread of a device's service calls it.

    What one device sends to another comes in its order, whatever the tags.
    """

    @property
    def sent_bytes(self) -> list[int]:
        """Number of bytes by device that they went to."""
        ...

    @property
    def received_bytes(self) -> list[int]:
        """Number of bytes by device that they came from."""
        ...

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Start sending (n,) uint8 to a device; the buffer must not be changed afterwards."""
        ...

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield each message that has come: (device it is from, tag, its bytes)."""
        ...

    def take_lost(self) -> list[int]:
        """Return the devices that were found dead since the last call, where this way tells."""
        ...

    @property
    def is_busy(self) -> bool:
        """True if a message is under way, to another device or from one."""
        ...

    @property
    def has_unwritten(self) -> bool:
        """True if messages to other devices wait for this one to send them, and would be lost with it."""
        ...

    def close(self) -> None:
        """Say that nothing more is sent."""
        ...


class Carrier(Protocol):
    """One rank's end of something that the ranks of a node share, such as a pool, by which devices send.

    Its files are handed to all ranks of a node; devices alone open it.
    """

    def files(self, *, claims: bool) -> dict[str, int]:
        """Return by label the descriptors of files that a node's ranks share.

        Called on one rank of each node, which `claims` them for the job if it is the first node's.

        Raises:
            ConfigError: there is no such thing, or somebody uses it.
            CapacityError: it is too small.
        """
        ...

    def open(self, files: Mapping[str, int]) -> None:
        """Map what `files` has given, on a device; before any device calls `check`.

        Raises:
            CapacityError: this process may not map so much.
            UnsupportedError: this processor cannot use it.
        """
        ...

    def check(self) -> ConfigError | None:
        """Return what is wrong where this device sees something else than the others."""
        ...

    def transport(self) -> DeviceTransport:
        """Return this device's way to the others."""
        ...
