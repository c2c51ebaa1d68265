"""Chakra's nodes with their attributes, read from and written to the bytes of a file.

Types of nodes and of collectives are those of MLCommons' schema (mlcommons/chakra, schema/protobuf/et_def.proto). A
file has messages one after another, each behind its length. protobuf comes with the extra `report`, so it is imported
where bytes are made or read.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = "1.0.0"
"""Version of the schema in the first message."""


class NodeType(IntEnum):
    """Type of a node."""

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
    """Operation of a COMM_COLL node, in its attribute comm_type."""

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
    """Attribute's number as int64_val, as ASTRA-sim reads comm_type, comm_size and num_ops."""

    value: int


Value = bool | float | str | int | Int64
"""Value of an attribute. A plain int is written as uint64_val, as ASTRA-sim reads tensor_size."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """Operation of a trace, with the nodes that it follows."""

    id: int
    name: str = ""
    type: int
    """NodeType, or the number of a later type."""
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    input_shapes: str = ""
    input_types: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    record: int = 0
    """Number of its message in its file; the metadata is record 1."""

    def number(self, name: str) -> int | None:
        """Return an attribute that is a whole number, or None if it is absent or something else."""
        value = self.attributes.get(name)
        if isinstance(value, Int64):
            return value.value
        return value if type(value) is int else None

    def is_on(self, name: str) -> bool:
        """Return whether an attribute is true."""
        return self.attributes.get(name) is True


class TraceFileError(ValueError):
    """Error of a file that is no trace, with the record and its fault."""

    def __init__(self, record: int, offset: int, reason: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {reason}")


def encoded(nodes: Iterable[Node], about: Mapping[str, Value]) -> bytes:
    """Return a file: the metadata with its attributes, then each node."""
    from google.protobuf import proto

    from coarse.cli.chakra import schema

    file = io.BytesIO()
    attributes = [schema.Attribute(**_of_attribute(name, value)) for name, value in about.items()]
    proto.serialize_length_prefixed(schema.Metadata(version=VERSION, attr=attributes), file)
    for node in nodes:
        message = schema.NodeMessage(
            id=node.id, name=node.name, type=node.type, ctrl_deps=node.ctrl_deps, data_deps=node.data_deps,
            start_time_micros=node.start_us, duration_micros=node.duration_us,
            attr=[schema.Attribute(**_of_attribute(name, value)) for name, value in node.attributes.items()],
        )  # fmt: skip
        proto.serialize_length_prefixed(message, file)
    return file.getvalue()


def decoded(data: bytes) -> Iterator[Node]:
    """Yield the nodes of a file.

    Raises:
        TraceFileError: bytes that are no messages, or that end within one.
    """
    from coarse.cli.chakra import schema

    file = io.BytesIO(data)
    if _read(file, schema.Metadata, 1) is None:
        return
    record = 2
    while (message := _read(file, schema.NodeMessage, record)) is not None:
        yield _node(message, record)
        record += 1


def metadata_of(data: bytes) -> Mapping[str, Value]:
    """Return the attributes of a file's first message, without lists.

    Raises:
        TraceFileError: bytes that do not begin with it.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    from coarse.cli.chakra import schema

    metadata = _read(io.BytesIO(data), schema.Metadata, 1)
    if metadata is None:
        raise TraceFileError(1, 0, "the file is empty, and a trace begins with its metadata")
    others = [each.field_number for each in UnknownFieldSet(metadata)]
    if others:
        reason = f"a trace begins with its metadata (version, attributes), got a field {others[0]}"
        raise TraceFileError(1, 0, reason)
    return _attributes(metadata.attr)


def _read(file: io.BytesIO, kind: Any, record: int) -> Any:  # noqa: ANN401
    """Return the next message, None at the file's end."""
    from google.protobuf import proto
    from google.protobuf.message import DecodeError

    offset = file.tell()
    try:
        return proto.parse_length_prefixed(kind, file)
    except (DecodeError, EOFError, ValueError) as error:
        begins = "a trace begins with its metadata, and " if record == 1 else ""
        raise TraceFileError(record, offset, f"{begins}this ends too early, or is no message ({error})") from error


def _of_attribute(name: str, value: Value) -> dict[str, Any]:
    """Return the fields of an attribute."""
    match value:
        case bool():
            return {"name": name, "bool_val": value}
        case float():
            return {"name": name, "double_val": value}
        case str():
            return {"name": name, "string_val": value}
        case Int64(number):
            return {"name": name, "int64_val": number}
        case _:
            return {"name": name, "uint64_val": value}


def _node(message: Any, record: int) -> Node:  # noqa: ANN401
    return Node(
        id=message.id, name=message.name, type=message.type, ctrl_deps=tuple(message.ctrl_deps),
        data_deps=tuple(message.data_deps), start_us=message.start_time_micros, duration_us=message.duration_micros,
        input_shapes=message.inputs.shapes, input_types=message.inputs.types, attributes=_attributes(message.attr),
        record=record,
    )  # fmt: skip


def _attributes(messages: Iterable[Any]) -> dict[str, Value]:
    """Return names and values, without lists and attributes without a value."""
    found: dict[str, Value] = {}
    for each in messages:
        kind = each.WhichOneof("value")
        if kind not in (None, "bool_list"):
            found[each.name] = getattr(each, kind)
    return found
