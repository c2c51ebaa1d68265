"""Messages between memory devices over MPI: records across nodes, chunks round the rings.

Only device ranks call this, and only their service's thread. Sends keep their buffer until MPI is
done with it; receives are found by matched probes, so nothing depends on the order of arrival.

[Note: receives do not wait] A long message comes in while the device goes on: on a slow link it
would otherwise serve nobody, and send nothing, until the last byte is there. What one device sends
is handed over in its order all the same.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from coarse.protocol.units import MIB

_MOST_RECEIVING_BYTES = 64 * MIB
"""Of messages that come in at once; more wait where they are. One of any size is taken."""


class _Arriving(NamedTuple):
    """A message that comes in."""

    tag: int
    request: MPI.Request
    payload: np.ndarray


class MpiTransport:
    """See DeviceTransport: between the devices' ranks on a communicator of their own."""

    carries_features = True
    """Whether messages of features may go this way."""

    def __init__(self, comm: MPI.Comm, rank_of_device: tuple[int, ...]) -> None:
        self._comm = comm
        self._ranks = rank_of_device
        self._device_of = {rank: device for device, rank in enumerate(rank_of_device)}
        self._sending: list[tuple[int, MPI.Request, np.ndarray]] = []
        """Device, request and its buffer, which MPI reads until the request is complete."""
        self._receiving: dict[int, deque[_Arriving]] = {device: deque() for device in self._device_of.values()}
        """By the device that it is from, in its order. See [Note: receives do not wait]."""
        self._receiving_bytes = 0
        self._given_up: list[tuple[MPI.Request, np.ndarray]] = []
        """What went to lost devices, or came from them, that MPI never completed: it may hold their buffers."""
        self._lost: set[int] = set()
        self._untold: list[int] = []
        self.sent_bytes = [0] * len(rank_of_device)
        """By device that they went to."""
        self.received_bytes = [0] * len(rank_of_device)
        """By device that they came from."""

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
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

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Whatever has come: (device it is from, tag, its bytes)."""
        self._sending = [sent for sent in self._sending if not self._has_ended(*sent)]
        has_more = True
        while has_more:
            has_more = False
            self._begin_receives()
            for device, arriving in self._receiving.items():
                while arriving and self._has_come(device, arriving[0]):
                    tag, _, payload = arriving.popleft()
                    self._receiving_bytes -= payload.nbytes
                    self.received_bytes[device] += payload.nbytes
                    has_more = True
                    yield device, tag, payload

    def _begin_receives(self) -> None:
        """Of all messages that are announced, as far as there is room."""
        status = MPI.Status()
        try:
            while self._receiving_bytes < _MOST_RECEIVING_BYTES:
                message = self._comm.Improbe(status=status)
                if message is None:
                    return
                payload = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                source, tag = status.Get_source(), status.Get_tag()
                request = message.Irecv([payload, MPI.BYTE])
                self._receiving[self._device_of[source]].append(_Arriving(tag, request, payload))
                self._receiving_bytes += payload.nbytes
        except MPI.Exception as error:
            self._note_lost(error)

    def _has_come(self, device: int, arriving: _Arriving) -> bool:
        """Whether all of a message is there."""
        try:
            return bool(arriving.request.Test())
        except MPI.Exception as error:
            self._note_lost(error)
        return False

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
                self._forget_arriving(device)
        self._comm.Ack_failed(gone.Get_size())

    def _forget_arriving(self, device: int) -> None:
        """What a lost device had begun to send never comes."""
        for _, request, payload in self._receiving[device]:
            self._given_up.append((request, payload))
            self._receiving_bytes -= payload.nbytes
        self._receiving[device].clear()

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
    def is_busy(self) -> bool:
        """Whether a message is under way, to another device or from one."""
        return bool(self._sending) or self._receiving_bytes > 0

    has_unwritten = False
    """MPI has taken all that was sent, and sends it while it ends."""

    def close(self) -> None:
        """See DeviceTransport: MPI keeps what is under way, and its buffers are kept for it."""
