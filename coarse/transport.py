"""Messages between memory devices over MPI: records across nodes, chunks round the rings.

Only device ranks call this, and only their service's thread. Sends keep their buffer until MPI is
done with it; receives are found by matched probes, so nothing depends on the order of arrival.
"""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from coarse.messages import Tag


class MpiTransport:
    """Tagged messages between the devices' ranks on a communicator of their own."""

    def __init__(self, comm: MPI.Comm, rank_of_device: tuple[int, ...]) -> None:
        self._comm = comm
        self._ranks = rank_of_device
        self._device_of = {rank: device for device, rank in enumerate(rank_of_device)}
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []
        self.sent_bytes = 0
        self.received_bytes = 0

    def send(self, device: int, tag: Tag, payload: np.ndarray) -> None:
        """Start sending (n,) uint8 to a device; the buffer must not be changed afterwards."""
        request = self._comm.Isend([payload, MPI.BYTE], dest=self._ranks[device], tag=int(tag))
        self._sending.append((request, payload))
        self.sent_bytes += payload.nbytes

    def poll(self) -> Iterator[tuple[int, Tag, np.ndarray]]:
        """Whatever has come: (device it is from, tag, its bytes)."""
        self._sending = [pair for pair in self._sending if not pair[0].Test()]
        status = MPI.Status()
        while (message := self._comm.Improbe(status=status)) is not None:
            payload = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            source, tag = status.Get_source(), Tag(status.Get_tag())
            message.Recv([payload, MPI.BYTE])
            self.received_bytes += payload.nbytes
            yield self._device_of[source], tag, payload

    @property
    def is_sending(self) -> bool:
        """Whether a send is under way."""
        return bool(self._sending)
