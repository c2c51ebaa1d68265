"""Check that all ranks mean the same tensors, before any of them is exchanged."""

import hashlib
import json

import numpy as np

from coarse.errors import MismatchError
from coarse.parallel.data.byte_stream import stream_blobs
from coarse.protocol.agreement import Entries, first_difference
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.session import current


def require_same(entries: Entries, what: str) -> None:
    """Raise MismatchError on every rank, naming the first entry at fault, unless all ranks' are equal.

    All ranks call it in one order. `what` names the entries in the error, such as "parameter".
    """
    text = json.dumps(list(entries)).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    extremes = np.array([digest, -digest], np.int64)
    client = current().require_client()
    descriptor = Descriptor("coarse/agreement", int(DType.INT64), int(Op.MAX), (2,), 0)
    client.push_pull(descriptor, extremes, extremes).wait()
    if extremes[0] == -extremes[1]:
        return
    lists = [json.loads(blob) for blob in stream_blobs(text, "coarse/agreement/entries")]
    raise MismatchError(f"rank {client.protocol.client}: {first_difference(lists, what)}")
