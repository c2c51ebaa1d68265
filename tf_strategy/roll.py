"""Whether all workers are at the same point of their programs, asked beside every synchronisation.

Keras runs the same program on every rank; where ranks come to differ (data that end earlier, a callback that stops one
of them, a metric read on one rank only) each would wait for what the others never push, or worse, add up what does not
belong together. So every synchronisation is numbered, and says what it is about.
"""

import hashlib

from coarse.client.handle import Handle
from coarse.dtypes import DType, Op
from coarse.errors import MismatchError
from coarse.gradients.byte_stream import stream_blobs
from coarse.messages import URGENT, Descriptor
from coarse.runtime import Runtime


def fingerprint_of(text: str) -> int:
    """A number below 2^62 that tells texts apart, equal on all ranks."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 2


class RollCall:
    """One vector in device memory, where every worker writes where it is."""

    def __init__(self, runtime: Runtime) -> None:
        assert runtime.client_index is not None
        self._client = runtime.require_client()
        self._rank = runtime.client_index
        shape = (runtime.placement.num_clients, 2)
        self._descriptor = Descriptor("tensorflow/roll", int(DType.INT64), int(Op.SUM), shape, URGENT)
        self._places = self._client.device_array(self._descriptor)
        self._handle: Handle | None = None
        self._text = ""
        self.number = 0
        """Synchronisations begun so far."""

    def begin(self, text: str) -> None:
        """Say what this worker synchronises now; `meet` waits for the others."""
        self.number += 1
        self._text = text
        self._places[:] = 0
        self._places[self._rank] = (fingerprint_of(text), self.number)
        self._handle = Handle(self._client, self._client.push(self._descriptor, None), self._places)

    def meet(self) -> None:
        """Return once all workers are here.

        Raises:
            MismatchError: they are at different points (on all workers).
        """
        assert self._handle is not None
        self._handle.wait()
        if (self._places == self._places[0]).all():
            return
        here = f"{self._text} (number {self.number})"
        texts = [blob.decode() for blob in stream_blobs(here.encode(), "tensorflow/at")]
        raise MismatchError(f"rank {self._rank}: {difference_of(texts)}")


def difference_of(texts: list[str]) -> str:
    """Who is where, in words."""
    places = {text: [rank for rank, at in enumerate(texts) if at == text] for text in dict.fromkeys(texts)}
    said = "; ".join(f"rank{'s' if len(ranks) > 1 else ''} {ranks} at {text}" for text, ranks in places.items())
    return (
        f"the workers' programs have come apart: {said}; see whether a rank's data ended earlier, a variable has "
        "another shape there, or only some ranks stop, read a metric or call the strategy"
    )
