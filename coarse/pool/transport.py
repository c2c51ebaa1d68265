"""Messages between memory devices over a pool: as MpiTransport, but by memory that their hosts share."""

from collections.abc import Iterator

import numpy as np

from coarse.pool.ring import RingPlace, RingReader, RingWriter
from coarse.pool.shared.memory import Pool


class PoolTransport:
    """Rings of one device to and from all others; see DeviceTransport."""

    def __init__(self, pool: Pool, places: dict[tuple[int, int], RingPlace], device: int, num_devices: int) -> None:
        """Open the rings.

        `places` are by (writer, reader). No device may send before all have been made.
        """
        self._pool = pool
        others = [other for other in range(num_devices) if other != device]
        self._writers = {other: RingWriter(pool, places[device, other]) for other in others}
        self._readers = {
            other: RingReader(pool, places[other, device], f"memory device {other}") for other in others
        }
        self.sent_bytes = [0] * num_devices
        self.received_bytes = [0] * num_devices

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Send a message to a device; see DeviceTransport."""
        self._writers[device].send(int(tag), payload)
        self.sent_bytes[device] += payload.nbytes

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (device, tag, payload) of all messages that have come; see DeviceTransport."""
        for writer in self._writers.values():
            writer.advance()
        for device, reader in self._readers.items():
            for tag, payload in reader.take():
                self.received_bytes[device] += payload.nbytes
                yield device, tag, payload

    def take_lost(self) -> list[int]:
        """Return nothing: a pool says nothing of the dead; their launcher does."""
        return []

    @property
    def is_busy(self) -> bool:
        """True if a message is under way, to another device or from one."""
        return self.has_unwritten or any(reader.is_within_message for reader in self._readers.values())

    @property
    def has_unwritten(self) -> bool:
        """True if a full ring keeps back a part of a message."""
        return any(writer.has_unwritten for writer in self._writers.values())

    def close(self) -> None:
        """Close the pool; see DeviceTransport.

        Raises:
            CoherenceError: the pool is checked, and something was never flushed.
        """
        self._pool.close()
