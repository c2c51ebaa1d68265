"""A way of messages between devices that is made of something which the ranks of a node share, such as a pool."""

from collections.abc import Mapping
from typing import Protocol

from coarse.errors import ConfigError
from coarse.transport.device_transport import DeviceTransport


class Carrier(Protocol):
    """One rank's end of it. Its files are handed to all ranks of a node; devices alone open it."""

    def files(self, *, claims: bool) -> dict[str, int]:
        """Return by label the descriptors of what a node's ranks share; called on one rank of each node, which
        `claims` them for the job where it is of the first.

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
