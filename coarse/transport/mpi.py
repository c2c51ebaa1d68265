"""Messages between memory devices over MPI: records across nodes, chunks round the rings.

Only device ranks call this, and only their service's thread. Sends keep their buffer until MPI is
done with it; receives are found by matched probes, so nothing depends on the order of arrival.
"""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from coarse.protocol.records import Tag


class MpiTransport:
    """Tagged messages between the devices' ranks on a communicator of their own."""

    carries_packets = True
    """Whether frames of models in the network may go this way."""

    def __init__(self, comm: MPI.Comm, rank_of_device: tuple[int, ...]) -> None:
        self._comm = comm
        self._ranks = rank_of_device
        self._device_of = {rank: device for device, rank in enumerate(rank_of_device)}
        self._sending: list[tuple[int, MPI.Request, np.ndarray]] = []
        """Device, request and its buffer, which MPI reads until the request is complete."""
        self._given_up: list[tuple[MPI.Request, np.ndarray]] = []
        """Sends to lost devices that MPI never completed: it may hold their buffers."""
        self._lost: set[int] = set()
        self._untold: list[int] = []
        self.sent_bytes = [0] * len(rank_of_device)
        """By device that they went to."""
        self.received_bytes = [0] * len(rank_of_device)
        """By device that they came from."""

    def send(self, device: int, tag: Tag, payload: np.ndarray) -> None:
        """Start sending (n,) uint8 to a device; the buffer must not be changed afterwards."""
        if device in self._lost:
            return
        try:
            request = self._comm.Isend([payload, MPI.BYTE], dest=self._ranks[device], tag=int(tag))
        except MPI.Exception as error:
            self._note_lost(error)
            return
        self._sending.append((device, request, payload))
        self.sent_bytes[device] += payload.nbytes

    def poll(self) -> Iterator[tuple[int, Tag, np.ndarray]]:
        """Whatever has come: (device it is from, tag, its bytes)."""
        self._sending = [sent for sent in self._sending if not self._has_ended(*sent)]
        try:
            status = MPI.Status()
            while (message := self._comm.Improbe(status=status)) is not None:
                payload = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                source, tag = status.Get_source(), Tag(status.Get_tag())
                message.Recv([payload, MPI.BYTE])
                device = self._device_of[source]
                self.received_bytes[device] += payload.nbytes
                yield device, tag, payload
        except MPI.Exception as error:
            self._note_lost(error)

    def take_lost(self) -> list[int]:
        """Devices that were found dead since the last call; only a fault-tolerant MPI tells."""
        lost, self._untold = self._untold, []
        return lost

    def _note_lost(self, error: MPI.Exception) -> None:
        """Take MPI's word that ranks are dead, so that it goes on with the others; raise all else."""
        if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            raise error
        gone = self._comm.Get_failed()
        ranks = range(gone.Get_size())
        for rank in gone.Translate_ranks(list(ranks), self._comm.Get_group()):
            device = self._device_of[rank]
            if device not in self._lost:
                self._lost.add(device)
                self._untold.append(device)
        self._comm.Ack_failed(gone.Get_size())

    def _has_ended(self, device: int, request: MPI.Request, payload: np.ndarray) -> bool:
        """Whether a send is no longer under way: it is complete, or its device is lost."""
        try:
            is_complete = request.Test()
        except MPI.Exception as error:
            self._note_lost(error)
            is_complete = False
        if not is_complete and device in self._lost:
            self._given_up.append((request, payload))
        return is_complete or device in self._lost

    @property
    def is_sending(self) -> bool:
        """Whether a send is under way."""
        return bool(self._sending)
