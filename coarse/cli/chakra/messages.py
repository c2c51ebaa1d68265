# Pure: no MPI, threads, clock or environment.
"""Chakra's messages: a node with its attributes, to and from bytes.

Numbers of fields, types of nodes and of collectives are those of MLCommons' schema (mlcommons/chakra,
schema/protobuf/et_def.proto). Fields that a step of training does not need (lists, outputs, storage) are passed over.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from coarse.cli.chakra.wire import (
    Wire,
    WireError,
    bytes_field,
    delimited,
    double_field,
    fields,
    packed,
    read_varint,
    signed,
    unpacked,
    varint_field,
)

VERSION = "1.0.0"
"""Of the schema, as it stands in the first message."""


class NodeType(IntEnum):
    """What a node is."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


class Collective(IntEnum):
    """What a COMM_COLL node does: its attribute comm_type."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Int64(NamedTuple):
    """An attribute's number as int64_val, as ASTRA-sim reads comm_type, comm_size and num_ops."""

    value: int


Value = bool | float | str | int | Int64
"""Of an attribute; a plain int is written as uint64_val, as ASTRA-sim reads tensor_size."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One thing that was done, after others."""

    id: int
    name: str = ""
    type: int
    """A NodeType, or a later one's number."""
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    input_shapes: str = ""
    input_types: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    record: int = 0
    """Its place in its file; the metadata is record 1."""

    def number(self, name: str) -> int | None:
        """An attribute that is a whole number; None where it is absent or something else."""
        value = self.attributes.get(name)
        if isinstance(value, Int64):
            return value.value
        return value if type(value) is int else None

    def is_on(self, name: str) -> bool:
        """Whether an attribute is true."""
        return self.attributes.get(name) is True


class TraceFileError(ValueError):
    """A file that is no trace: which record, and what is wrong with it."""

    def __init__(self, record: int, offset: int, reason: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {reason}")


def encoded(nodes: Iterable[Node], about: Mapping[str, Value]) -> Iterator[bytes]:
    """A file's pieces: the metadata with its attributes, then each node."""
    attributes = (bytes_field(2, _of_attribute(name, value)) for name, value in about.items())
    yield delimited(bytes_field(1, VERSION.encode()) + b"".join(attributes))
    for node in nodes:
        yield delimited(_of_node(node))


def decoded(data: bytes) -> Iterator[Node]:
    """The nodes of a file.

    Raises:
        TraceFileError: bytes that are no messages, or that end within one.
    """
    for record, offset, message in _records(data):
        if record > 1:
            with _named(record, offset):
                node = _node(message, record)
            yield node


def metadata_of(data: bytes) -> Mapping[str, Value]:
    """The attributes of a file's first message, as far as they are no lists.

    Raises:
        TraceFileError: bytes that do not begin with it.
    """
    attributes: dict[str, Value] = {}
    for record, offset, message in _records(data):
        with _named(record, offset):
            for number, wire, value in fields(message):
                if number > 2 or wire is not Wire.BYTES:
                    raise WireError(f"a trace begins with its metadata (version, attributes), got a field {number}")
                if number == 2:
                    attributes |= _attribute(_bytes(number, value))
        return attributes
    raise TraceFileError(1, 0, "the file is empty, and a trace begins with its metadata")


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, message) of each record."""
    at, record = 0, 0
    while at < len(data):
        record += 1
        begin = at
        with _named(record, begin):
            length, at = read_varint(data, at)
            if at + length > len(data):
                raise WireError(f"it has {length} bytes, and the file ends after {len(data) - at} of them")
        yield record, begin, data[at : at + length]
        at += length


@contextmanager
def _named(record: int, offset: int) -> Iterator[None]:
    """Turn wrong bytes into an error that says where they are."""
    try:
        yield
    except (WireError, UnicodeDecodeError, struct.error) as error:
        raise TraceFileError(record, offset, str(error)) from error


def _of_node(node: Node) -> bytes:
    parts = [varint_field(1, node.id)] if node.id else []
    parts += [bytes_field(2, node.name.encode()), varint_field(3, node.type)]
    for number, deps in ((4, node.ctrl_deps), (5, node.data_deps)):
        if deps:
            parts.append(bytes_field(number, packed(deps)))
    for number, value in ((6, node.start_us), (7, node.duration_us)):
        if value:
            parts.append(varint_field(number, value))
    parts += [bytes_field(10, _of_attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join(parts)


def _of_attribute(name: str, value: Value) -> bytes:
    named = bytes_field(1, name.encode())
    match value:
        case bool():
            return named + varint_field(27, value)
        case float():
            return named + double_field(3, value)
        case str():
            return named + bytes_field(29, value.encode())
        case Int64(number):
            return named + varint_field(9, number)
        case _:
            return named + varint_field(13, value)


def _node(message: bytes, record: int) -> Node:
    numbers: dict[int, int] = {}
    deps: dict[int, list[int]] = {4: [], 5: []}
    attributes: dict[str, Value] = {}
    name, shapes, types = "", "", ""
    for number, _, value in fields(message):
        if number in (1, 3, 6, 7):
            numbers[number] = _int(number, value)
        elif number == 2:
            name = _bytes(number, value).decode()
        elif number in deps:
            deps[number] += [value] if isinstance(value, int) else unpacked(value)
        elif number == 8:
            shapes, types = _shapes_and_types(_bytes(number, value))
        elif number == 10:
            attributes |= _attribute(_bytes(number, value))
    return Node(
        id=numbers.get(1, 0), name=name, type=numbers.get(3, 0), ctrl_deps=tuple(deps[4]), data_deps=tuple(deps[5]),
        start_us=numbers.get(6, 0), duration_us=numbers.get(7, 0), input_shapes=shapes, input_types=types,
        attributes=attributes, record=record,
    )  # fmt: skip


def _shapes_and_types(message: bytes) -> tuple[str, str]:
    texts = {number: value for number, _, value in fields(message) if number in (2, 3)}
    return _bytes(2, texts.get(2, b"")).decode(), _bytes(3, texts.get(3, b"")).decode()


_SIGNED = (7, 9)
_UNSIGNED = (11, 13)
_ZIGZAG = (15, 17)
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


def _attribute(message: bytes) -> dict[str, Value]:
    """Its name and value; nothing of a list, and of one without a value zero, which protobuf leaves out."""
    name = ""
    value: Value | None = None
    for number, _, found in fields(message):
        if number == 1:
            name = _bytes(number, found).decode()
        elif number in _SIGNED:
            value = signed(_int(number, found))
        elif number in _UNSIGNED:
            value = _int(number, found)
        elif number in _ZIGZAG:
            raw = _int(number, found)
            value = raw >> 1 ^ -(raw & 1)
        elif number in _FIXED:
            (value,) = struct.unpack(_FIXED[number], _bytes(number, found))
        elif number == 27:
            value = bool(_int(number, found))
        elif number == 29:
            value = _bytes(number, found).decode()
    return {} if value is None else {name: value}


def _int(number: int, value: int | bytes) -> int:
    if not isinstance(value, int):
        raise WireError(f"field {number} must be a whole number, got {len(value)} bytes")
    return value


def _bytes(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise WireError(f"field {number} must be bytes, got the number {value}")
    return value
