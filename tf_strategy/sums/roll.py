"""Whether all workers are at the same point of their programs, asked beside every synchronisation.

Keras runs the same program on every rank; where ranks come to differ (data that end earlier, a callback that stops one
of them, a metric read on one rank only) each would wait for what the others never push, or worse, add up what does not
belong together. So every synchronisation is numbered, and says what it is about.
"""

from typing import TYPE_CHECKING

import numpy as np

from coarse.client.handle import Handle
from coarse.errors import DeadRankError, MismatchError, StallError
from coarse.parallel.data.byte_stream import stream_blobs
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import URGENT, Descriptor
from tf_strategy.sums.places import Place, decoded, difference_of
from tf_strategy.sums.waits import told

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime

SAID_BYTES = 64
"""What a worker may say beside where it is."""
_BEFORE = 2
"""int64 before what it says: where it is, and the number of synchronisations so far."""


class RollCall:
    """One vector in device memory, where every worker writes where it is."""

    def __init__(self, runtime: "Runtime") -> None:
        assert runtime.client_index is not None
        self._client = runtime.require_client()
        self._rank = runtime.client_index
        shape = (runtime.placement.num_clients, _BEFORE + SAID_BYTES // 8)
        self._descriptor = Descriptor("tensorflow/roll", int(DType.INT64), int(Op.SUM), shape, URGENT)
        self._rows = self._client.device_array(self._descriptor)
        self._handle: Handle | None = None
        self._place = Place("nothing")
        self.number = 0
        """Synchronisations begun so far."""

    def begin(self, place: Place, said: bytes = b"") -> None:
        """Say what this worker synchronises now, and at most SAID_BYTES more; `meet` waits for the others."""
        self.number += 1
        self._place = place
        self._rows[:] = 0
        mine = self._rows[self._rank]
        mine[:_BEFORE] = (place.fingerprint, self.number)
        mine[_BEFORE:].view(np.uint8)[: len(said)] = np.frombuffer(said, np.uint8)
        self._handle = self._client.push_pull(self._descriptor, None, self._rows)

    def meet(self) -> None:
        """Return once all workers are here.

        Raises:
            MismatchError: they are at different points (on all workers).
            StallError: some have not come in time, which it names.
            DeadRankError: some have ended.
        """
        assert self._handle is not None
        try:
            self._handle.wait()
        except (StallError, DeadRankError) as error:
            raise told(error, self._rank, f"synchronisation {self.number}, {self._place}") from None
        places = self._rows[:, :_BEFORE]
        if (places != places[0]).any():
            blobs = stream_blobs(self._place.encoded, "tensorflow/at")
            said = difference_of([decoded(blob) for blob in blobs])
            raise MismatchError(f"rank {self._rank}: at synchronisation {self.number} {said}")

    def said(self, rank: int, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8: what a rank said, until the next `begin`."""
        return self._rows[rank, _BEFORE:].view(np.uint8)[:nbytes]
