"""Attendance of workers in a round; those that have joined give nothing any more."""

from typing import TYPE_CHECKING

import numpy as np

from coarse.client.handle import Handle
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import URGENT, Descriptor

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


class Presence:
    """Attendance call, made once a round by all workers that have not joined, under one name."""

    def __init__(self, runtime: "Runtime", name: str) -> None:
        num_workers = runtime.placement.num_clients
        self._client = runtime.require_client()
        self._worker = runtime.client_index
        self._call = Descriptor(name, int(DType.INT64), int(Op.SUM), (num_workers,), URGENT)
        self._answer: Handle | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """True if this round's call has been made."""
        return self._answer is not None

    def ask(self, number: int = 1) -> None:
        """Announce that this worker takes part, by a number above 0; do nothing if that is announced."""
        if self._answer is None:
            present = self._client.host_array(self._call)
            present[:] = 0
            present[self._worker] = number
            self._answer = self._client.push_pull(self._call, present, present)

    def said(self) -> np.ndarray:
        """Return each participating worker's number, 0 of others, once all have asked: (workers,) int64.

        After a StallError it may be called again.
        """
        assert self._answer is not None
        return self._answer.wait()

    def joined(self) -> tuple[int, ...]:
        """Return the workers that take no part, once all others have asked.

        After a StallError it may be called again.
        """
        return tuple(np.flatnonzero(self.said() == 0).tolist())

    def end(self) -> None:
        """End the round; the next one has another call."""
        if self._answer is not None:
            self._answer.wait()
            self._answer = None

    def close(self) -> None:
        """Wait for a call that was made, and make no more.

        All workers close it, whether they asked or not.
        """
        self.end()
        if not self._is_closed:
            self._is_closed = True
            self._client.deregister(self._call.name)
