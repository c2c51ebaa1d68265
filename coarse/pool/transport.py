"""Messages between memory devices over a pool: as MpiTransport, but through memory that their hosts share."""

from collections.abc import Iterator

import numpy as np

from coarse.pool.ring import RingPlace, RingReader, RingWriter
from coarse.pool.shared.memory import Pool


class PoolTransport:
    """See DeviceTransport: one device's rings to and from all others."""

    def __init__(self, pool: Pool, places: dict[tuple[int, int], RingPlace], device: int, num_devices: int) -> None:
        """`places` are by (writer, reader); no device may send before all have been made."""
        self._pool = pool
        others = [other for other in range(num_devices) if other != device]
        self._writers = {other: RingWriter(pool, places[device, other]) for other in others}
        self._readers = {
            other: RingReader(pool, places[other, device], f"memory device {other}") for other in others
        }
        self.sent_bytes = [0] * num_devices
        self.received_bytes = [0] * num_devices

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """See DeviceTransport."""
        self._writers[device].send(int(tag), payload)
        self.sent_bytes[device] += payload.nbytes

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """See DeviceTransport."""
        for writer in self._writers.values():
            writer.advance()
        for device, reader in self._readers.items():
            for tag, payload in reader.take():
                self.received_bytes[device] += payload.nbytes
                yield device, tag, payload

    def take_lost(self) -> list[int]:
        """None: a pool says nothing of the dead; their launcher does."""
        return []

    @property
    def is_busy(self) -> bool:
        """Whether a message is under way, to another device or from one."""
        return self.has_unwritten or any(reader.is_within_message for reader in self._readers.values())

    @property
    def has_unwritten(self) -> bool:
        """See DeviceTransport: what a full ring keeps back."""
        return any(writer.has_unwritten for writer in self._writers.values())

    def close(self) -> None:
        """See DeviceTransport.

        Raises:
            CoherenceError: the pool is checked, and something was never flushed.
        """
        self._pool.close()
