"""The bytes of records, and of the header in front of a ring's chunk.

The two records that a training step repeats (Push, Ready) have a fixed binary form, and so have those of a name's
first use (Register, Located), which may be thousands at once. The others are rare and travel as JSON, so that nothing
on the wire is ever executed.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from coarse.errors import CoarseError
from coarse.luwu.records import PAGED_RECORDS
from coarse.odc.records import ODC_RECORDS
from coarse.protocol.records import (
    Allocate,
    Allocated,
    Deregister,
    Descriptor,
    Died,
    Echo,
    Failed,
    Free,
    Join,
    Joined,
    JoinFailed,
    Leave,
    Lend,
    Located,
    Probe,
    Push,
    Query,
    Reach,
    Reached,
    Ready,
    Reclaim,
    Reclaimed,
    Record,
    Register,
    Registered,
    RingChunk,
    StatisticsReply,
    StatisticsRequest,
    Status,
    Table,
    Tables,
)
from coarse.snapshots.records import SNAPSHOT_RECORDS

_PUSH = struct.Struct("<BBHIIIQI")
_READY = struct.Struct("<BBxxIQI")
_RING = struct.Struct("<QQIIIIB7x")
RING_HEADER_BYTES = _RING.size
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
"""What lies behind a record begins at a multiple of it."""
_REGION = struct.Struct("<BBBBIIQqqiHHqI")
_EXTENTS = tuple(struct.Struct(f"<{num_dimensions}Q") for num_dimensions in range(65))
"""By number of dimensions, of which numpy and torch have 64 at most."""
_PUSH_KIND, _READY_KIND, _REGISTER_KIND, _LOCATED_KIND = 1, 2, 3, 4
_COLD: tuple[type, ...] = (
    Deregister, Registered, Failed, Query, Status, Join, Joined, JoinFailed, Table, Tables, Probe,
    Echo, Allocate, Allocated, Free, Reach, Reached, Lend, Reclaim, Reclaimed, StatisticsRequest, StatisticsReply,
    Leave, Died, *SNAPSHOT_RECORDS, *PAGED_RECORDS, *ODC_RECORDS,
)  # fmt: skip
_COLD_KIND = {kind: index + 16 for index, kind in enumerate(_COLD)}
_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode
_FROM_JSON = json.JSONDecoder().decode


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    if type(record) is Push:
        return _PUSH.pack(
            _PUSH_KIND,
            record.present,
            record.client,
            record.epoch,
            record.round,
            record.first,
            record.key,
            record.last,
        )
    if type(record) is Ready:
        return _READY.pack(_READY_KIND, record.present, record.first, record.key, record.last)
    if type(record) is Register or type(record) is Located:
        return _encode_region(record)
    return bytes([_COLD_KIND[type(record)]]) + _TO_JSON(record).encode()


def decode(frame: bytes) -> Record:
    """The record of some bytes; CoarseError where they are none."""
    kind = frame[0]
    if kind == _PUSH_KIND:
        _, present, client, epoch, round_, first, key, last = _PUSH.unpack(frame)
        return Push(client, key, epoch, round_, first, last, bool(present))
    if kind == _READY_KIND:
        _, present, first, key, last = _READY.unpack(frame)
        return Ready(key, first, last, bool(present))
    if kind in (_REGISTER_KIND, _LOCATED_KIND):
        return _decode_region(frame)
    if not 16 <= kind < 16 + len(_COLD):
        raise CoarseError(
            f"a record of unknown kind {kind} came; do all ranks run the same release?"
        )
    record_type = _COLD[kind - 16]
    fields: list[Any] = [_frozen(value) if type(value) is list else value for value in _FROM_JSON(frame[1:].decode())]
    record: Record = record_type(*fields)
    return record


def _encode_region(record: Register | Located) -> bytes:
    client, key, epoch, descriptor, device, offset = record
    name, dtype, op, shape, priority, parts, hint, plan = descriptor
    kind = _REGISTER_KIND if type(record) is Register else _LOCATED_KIND
    text, of = name.encode(), parts.encode()
    try:
        head = _REGION.pack(
            kind, dtype, op, len(shape), client, epoch, key, offset, priority, device, len(text), len(of), hint, plan
        )
        return head + _EXTENTS[len(shape)].pack(*shape) + text + of
    except (struct.error, IndexError) as error:
        wanted = "64 dimensions, and extents and a priority of 64 bits, are the most"
        raise CoarseError(f"{name[:40]!r}: {wanted}, got {shape} with priority {priority} ({error})") from None


def _decode_region(frame: bytes) -> Register | Located:
    kind, dtype, op, num_dimensions, client, epoch, key, offset, priority, device, text, of, hint, plan = (
        _REGION.unpack_from(frame)
    )
    extents = _EXTENTS[num_dimensions]
    at = _REGION.size + extents.size
    shape = extents.unpack_from(frame, _REGION.size)
    name, parts = frame[at : at + text].decode(), frame[at + text : at + text + of].decode()
    descriptor = Descriptor(name, dtype, op, shape, priority, parts, hint, plan)
    record_type = Register if kind == _REGISTER_KIND else Located
    return record_type(client, key, epoch, descriptor, device, offset)


def _frozen(values: list[Any]) -> tuple[Any, ...]:
    return tuple([_frozen(value) if type(value) is list else value for value in values])


def encode_bulk(record: Record, payload: Sequence[np.ndarray]) -> np.ndarray:
    """A record and (n,) uint8 arrays behind it, as (m,) uint8."""
    head = encode(record)
    begin = -(-(_LENGTH.size + len(head)) // _ALIGNMENT) * _ALIGNMENT
    frame = np.empty(begin + sum(map(len, payload)), np.uint8)
    frame[: _LENGTH.size + len(head)] = np.frombuffer(_LENGTH.pack(len(head)) + head, np.uint8)
    for part in payload:
        frame[begin : begin + len(part)] = part
        begin += len(part)
    return frame


def decode_bulk(frame: np.ndarray) -> tuple[Record, np.ndarray]:
    """The record of what `encode_bulk` made, and all bytes behind it."""
    (length,) = _LENGTH.unpack(frame[: _LENGTH.size].tobytes())
    end = _LENGTH.size + length
    return decode(frame[_LENGTH.size : end].tobytes()), frame[-(-end // _ALIGNMENT) * _ALIGNMENT :]


def encode_ring_header(header: RingChunk) -> bytes:
    """The RING_HEADER_BYTES in front of a chunk."""
    return _RING.pack(
        header.key, header.version, header.shard, header.step, header.epoch, header.round,
        header.present,
    )  # fmt: skip


def decode_ring_header(frame: bytes) -> RingChunk:
    """The header of a ring message."""
    key, version, shard, step, epoch, round_, present = _RING.unpack(frame)
    return RingChunk(key, epoch, round_, version, shard, step, bool(present))
