"""Whether all ranks mean the same tensors, asked before any of them is exchanged."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from coarse.errors import MismatchError
from coarse.parallel.data.byte_stream import stream_blobs
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.session import current

Entries = Sequence[tuple[str, str]]
"""(name of a tensor, what it is), in order."""


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


def first_difference(lists: Sequence[Entries], what: str) -> str:
    """The first entry in which some ranks' lists differ from others', in words."""
    tables = [dict(entries) for entries in lists]
    for name in dict.fromkeys(name for entries in lists for name, _ in entries):
        found = [table.get(name) for table in tables]
        if len(set(found)) > 1:
            kinds = dict.fromkeys(found)
            said = [f"{kind or 'missing'} on ranks {_at(found, kind)}" for kind in kinds]
            return f"{what} {name!r} differs between ranks: {'; '.join(said)}; build the same model on every rank"
    for position, row in enumerate(zip(*lists, strict=True)):
        names = [name for name, _ in row]
        if len(set(names)) > 1:
            said = [f"{name!r} on ranks {_at(names, name)}" for name in dict.fromkeys(names)]
            return (
                f"the order of {what}s differs between ranks: number {position} is "
                f"{'; '.join(said)}; list them in one order on every rank"
            )
    raise AssertionError("equal lists differ nowhere")


def _at(values: Sequence[str | None], value: str | None) -> list[int]:
    return [rank for rank, here in enumerate(values) if here == value]
