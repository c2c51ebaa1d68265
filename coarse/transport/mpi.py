"""Messages between memory devices over MPI: records across nodes, chunks round the rings.

Only device ranks call this, and only their service's thread. Sends keep their buffer until MPI is
done with it; receives are found by matched probes, so nothing depends on the order of arrival.

[Note: receives do not wait] A long message comes in while the device goes on: on a slow link it
would otherwise serve nobody, and send nothing, until the last byte is there. What one device sends
is handed over in its order all the same.

[Note: frames] Over TCP, MPI asks the receiver before it sends more than `btl_tcp_eager_limit` (1 MiB where coarse sets
it), and on a full link the answer waits behind what goes the other way. So what goes to another node, and is longer
than a frame, goes as its length and then frames that fit.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from coarse.protocol.units import MIB

_MOST_RECEIVING_BYTES = 64 * MIB
"""Most bytes of messages that come in at once; more wait where they are. One message of any size is taken."""
FRAME_BYTES = MIB // 2
"""Bytes of a frame ([Note: frames])."""
_LENGTH = 1 << 14
"""Added to the tag of a message that says how long the next one is, which comes in frames."""


@dataclass(eq=False)
class _Arriving:
    """A message that comes in."""

    tag: int
    payload: np.ndarray
    requests: deque[tuple[MPI.Request, int]] = field(default_factory=deque)
    """Requests of the message's frames that are being received, and their bytes."""
    begun_bytes: int = 0
    """Bytes of all its frames that were announced so far."""

    def begin(self, message: MPI.Message, nbytes: int) -> None:
        """Receive the next frame."""
        part = self.payload[self.begun_bytes : self.begun_bytes + nbytes]
        self.requests.append((message.Irecv([part, MPI.BYTE]), nbytes))
        self.begun_bytes += nbytes

    @property
    def is_announced(self) -> bool:
        """True if the last frame was announced."""
        return self.begun_bytes == self.payload.nbytes


class MpiTransport:
    """DeviceTransport between the devices' ranks, on a communicator of their own."""

    def __init__(
        self, comm: MPI.Comm, rank_of_device: tuple[int, ...], near: frozenset[int] = frozenset()
    ) -> None:
        """`near`: devices of this node, to which messages go whole."""
        self._near = near
        self._comm = comm
        self._ranks = rank_of_device
        self._device_of = {rank: device for device, rank in enumerate(rank_of_device)}
        self._sending: list[tuple[int, MPI.Request, np.ndarray]] = []
        """Device, request and its buffer, which MPI reads until the request is complete."""
        self._receiving: dict[int, deque[_Arriving]] = {device: deque() for device in self._device_of.values()}
        """Messages that are being received, by the device that each is from, in its order ([Note: receives do not
        wait])."""
        self._receiving_bytes = 0
        self._given_up: list[tuple[MPI.Request, np.ndarray]] = []
        """Sends to lost devices and receives from them that MPI never completed: it may hold their buffers."""
        self._lost: set[int] = set()
        self._untold: list[int] = []
        self.sent_bytes = [0] * len(rank_of_device)
        """Number of bytes by device that they went to."""
        self.received_bytes = [0] * len(rank_of_device)
        """Number of bytes by device that they came from."""

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Start sending (n,) uint8 to a device; the buffer must not be changed afterwards."""
        nbytes = payload.nbytes
        if nbytes <= FRAME_BYTES or device in self._near:
            self._begin_send(device, tag, payload)
        else:
            self._begin_send(device, tag + _LENGTH, np.array([nbytes], np.int64).view(np.uint8))
            for begin in range(0, nbytes, FRAME_BYTES):
                self._begin_send(device, tag, payload[begin : begin + FRAME_BYTES])
        if device not in self._lost:
            self.sent_bytes[device] += nbytes

    def _begin_send(self, device: int, tag: int, payload: np.ndarray) -> None:
        if device in self._lost:
            return
        try:
            request = self._comm.Isend([payload, MPI.BYTE], dest=self._ranks[device], tag=int(tag))
        except MPI.Exception as error:
            self._note_lost(error)
            return
        self._sending.append((device, request, payload))

    def poll(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield each message that has come: (device it is from, tag, its bytes)."""
        self._sending = [sent for sent in self._sending if not self._has_ended(*sent)]
        has_more = True
        while has_more:
            has_more = False
            self._begin_receives()
            for device, arriving in self._receiving.items():
                while arriving and self._has_come(arriving[0]):
                    come = arriving.popleft()
                    self.received_bytes[device] += come.payload.nbytes
                    has_more = True
                    yield device, come.tag, come.payload

    def _begin_receives(self) -> None:
        """Begin to receive all messages that are announced, as far as there is room."""
        status = MPI.Status()
        try:
            while self._receiving_bytes < _MOST_RECEIVING_BYTES:
                message = self._comm.Improbe(status=status)
                if message is None:
                    return
                nbytes, tag = status.Get_count(MPI.BYTE), status.Get_tag()
                device = self._device_of[status.Get_source()]
                from_device = self._receiving[device]
                if device in self._lost:  # the rest of what it had begun to send
                    rest = np.empty(nbytes, np.uint8)
                    self._given_up.append((message.Irecv([rest, MPI.BYTE]), rest))
                    continue
                if tag >= _LENGTH:
                    length = np.empty(1, np.int64)
                    message.Recv([length, MPI.BYTE])
                    from_device.append(_Arriving(tag - _LENGTH, np.empty(int(length[0]), np.uint8)))
                    continue
                if not from_device or from_device[-1].is_announced:
                    from_device.append(_Arriving(tag, np.empty(nbytes, np.uint8)))
                from_device[-1].begin(message, nbytes)
                self._receiving_bytes += nbytes
        except MPI.Exception as error:
            self._note_lost(error)

    def _has_come(self, arriving: _Arriving) -> bool:
        """Return whether all of a message is there."""
        try:
            while arriving.requests and arriving.requests[0][0].Test():
                self._receiving_bytes -= arriving.requests.popleft()[1]
        except MPI.Exception as error:
            self._note_lost(error)
            return False
        return arriving.is_announced and not arriving.requests

    def take_lost(self) -> list[int]:
        """Return the devices that were found dead since the last call; only a fault-tolerant MPI tells."""
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
        """Forget the messages that a lost device had begun to send, since they never come."""
        for arriving in self._receiving[device]:
            for request, nbytes in arriving.requests:
                self._given_up.append((request, arriving.payload))
                self._receiving_bytes -= nbytes
        self._receiving[device].clear()

    def _has_ended(self, device: int, request: MPI.Request, payload: np.ndarray) -> bool:
        """Return whether a send is no longer under way: it is complete, or its device is lost."""
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
        """True if a message is under way, to another device or from one."""
        return bool(self._sending) or any(self._receiving.values())

    has_unwritten = False
    """MPI has taken all that was sent, and sends it while it ends."""

    def close(self) -> None:
        """Close the transport; MPI keeps what is under way, and its buffers are kept for it."""
