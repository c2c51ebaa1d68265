"""Bytes of records, and of the header in front of a ring's chunk.

The two records that a training step repeats (Push, Ready) have a fixed binary form, and so have those of a name's
first use (Register, Located), which may be thousands at once. The others are rare and travel as JSON, so that nothing
on the wire is ever executed. Records of features travel by name, "luwu.PagedAsk": no order of imports matters to it.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coarse.errors import CoarseError, ConfigError
from coarse.protocol.features import part_of, spec_of
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

_PUSH = struct.Struct("<BBHIIIQI")
_READY = struct.Struct("<BBxxIQI")
_RING = struct.Struct("<QQIIIIB7x")
RING_HEADER_BYTES = _RING.size
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
"""Multiple of bytes at which the payload behind a record begins."""
_REGION = struct.Struct("<BBBBIIQqqiHHqI")
_EXTENTS = tuple(struct.Struct(f"<{num_dimensions}Q") for num_dimensions in range(65))
"""Formats of a shape by its number of dimensions; numpy and torch allow 64 at most."""
_PUSH_KIND, _READY_KIND, _REGISTER_KIND, _LOCATED_KIND, _NAMED_KIND = 1, 2, 3, 4, 5
_COLD: tuple[type, ...] = (
    Deregister, Registered, Failed, Query, Status, Join, Joined, JoinFailed, Table, Tables, Probe,
    Echo, Allocate, Allocated, Free, Reach, Reached, Lend, Reclaim, Reclaimed, StatisticsRequest, StatisticsReply,
    Leave, Died,
)  # fmt: skip
_COLD_KIND = {kind: index + 16 for index, kind in enumerate(_COLD)}
_of_features: dict[str, type] = {}
"""Records of features that were imported, by FEATURE.RECORD."""
_names: dict[type, str] = {}
_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode
_FROM_JSON = json.JSONDecoder().decode


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
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
    cold = _COLD_KIND.get(type(record))
    if cold is None:
        return _encode_named(record)
    return bytes([cold]) + _TO_JSON(record).encode()


def decode(frame: bytes) -> Record:
    """Return the record that some bytes hold; CoarseError where they hold none."""
    kind = frame[0]
    if kind == _PUSH_KIND:
        _, present, client, epoch, round_, first, key, last = _PUSH.unpack(frame)
        return Push(client, key, epoch, round_, first, last, bool(present))
    if kind == _READY_KIND:
        _, present, first, key, last = _READY.unpack(frame)
        return Ready(key, first, last, bool(present))
    if kind in (_REGISTER_KIND, _LOCATED_KIND):
        return _decode_region(frame)
    if kind == _NAMED_KIND:
        end = 2 + frame[1]
        return _made(_named(frame[2:end].decode()), frame[end:])
    if not 16 <= kind < 16 + len(_COLD):
        raise CoarseError(
            f"a record of unknown kind {kind} came; do all ranks run the same release?"
        )
    return _made(_COLD[kind - 16], frame[1:])


def _encode_named(record: Record) -> bytes:
    name = _names.get(type(record))
    if name is None:
        raise CoarseError(
            f"a {type(record).__name__} is no record that anybody has registered; call register_records below its class"
        )
    try:
        return bytes([_NAMED_KIND, len(name)]) + name.encode() + _TO_JSON(record).encode()
    except (TypeError, ValueError) as error:
        raise CoarseError(f"{name}: a record holds numbers, texts, None, and tuples of them: {error}") from None


def _made(kind: type, text: bytes) -> Record:
    fields: list[Any] = [_frozen(value) if type(value) is list else value for value in _FROM_JSON(text.decode())]
    record: Record = kind(*fields)
    return record


def register_records(feature: str, kinds: Iterable[type]) -> None:
    """Register the records of a feature for travel; the module that has them calls it.

    Raises:
        ConfigError: Something that is no NamedTuple class.
    """
    for kind in kinds if isinstance(kinds, tuple | list) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise ConfigError(
                f"a record of the feature {feature!r} must be a NamedTuple class, got {kind!r}", key="features"
            )
        _of_features[f"{feature}.{kind.__name__}"] = kind
        _names[kind] = f"{feature}.{kind.__name__}"


def is_of_feature(record: Record) -> bool:
    """Return whether a record belongs to a feature and not to the kernel."""
    return type(record) in _names


def feature_of(record: Record) -> str:
    """Return the name of the feature to which a record belongs.

    Raises:
        CoarseError: Neither the kernel nor a feature knows such a record.
    """
    name = _names.get(type(record))
    if name is None:
        raise CoarseError(f"a record {record} came that no feature knows; do all ranks run the same release?")
    return name.partition(".")[0]


def _named(name: str) -> type:
    """Return the class of a feature's record, whose module is imported where it has not been."""
    if name not in _of_features:
        feature = name.partition(".")[0]
        try:
            register_records(feature, part_of(spec_of(feature).records))
        except ConfigError as error:
            raise CoarseError(f"a record {name!r} came: {error}") from None
    if name not in _of_features:
        raise CoarseError(f"a record {name!r} came, which is unknown here; do all ranks run the same release?")
    return _of_features[name]


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
    """Encode a record and (n,) uint8 arrays behind it, as (m,) uint8."""
    head = encode(record)
    begin = -(-(_LENGTH.size + len(head)) // _ALIGNMENT) * _ALIGNMENT
    frame = np.empty(begin + sum(map(len, payload)), np.uint8)
    frame[: _LENGTH.size + len(head)] = np.frombuffer(_LENGTH.pack(len(head)) + head, np.uint8)
    for part in payload:
        frame[begin : begin + len(part)] = part
        begin += len(part)
    return frame


def decode_bulk(frame: np.ndarray) -> tuple[Record, np.ndarray]:
    """Decode the record of what `encode_bulk` made, and return it with all bytes behind it."""
    (length,) = _LENGTH.unpack(frame[: _LENGTH.size].tobytes())
    end = _LENGTH.size + length
    return decode(frame[_LENGTH.size : end].tobytes()), frame[-(-end // _ALIGNMENT) * _ALIGNMENT :]


def encode_ring_header(header: RingChunk) -> bytes:
    """Encode the RING_HEADER_BYTES in front of a chunk."""
    return _RING.pack(
        header.key, header.version, header.shard, header.step, header.epoch, header.round,
        header.present,
    )  # fmt: skip


def decode_ring_header(frame: bytes) -> RingChunk:
    """Decode the header of a ring message."""
    key, version, shard, step, epoch, round_, present = _RING.unpack(frame)
    return RingChunk(key, epoch, round_, version, shard, step, bool(present))
