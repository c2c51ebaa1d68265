"""Chakra's messages as tests write and read them, by coarse's schema and the protobuf package."""

import io

from google.protobuf import proto

from coarse.cli.chakra import schema

ATTRIBUTE_FIELDS = schema.ATTRIBUTE_FIELDS
MESSAGES = {
    "Attribute": schema.Attribute, "Metadata": schema.Metadata, "Node": schema.NodeMessage, "Info": schema.Info,
    "BoolList": schema.BoolList,
}  # fmt: skip


def parsed(data):
    """(metadata, nodes) of a file."""
    file = io.BytesIO(data)
    metadata = proto.parse_length_prefixed(schema.Metadata, file)
    nodes = []
    while (node := proto.parse_length_prefixed(schema.NodeMessage, file)) is not None:
        nodes.append(node)
    return metadata, nodes


def delimited(message):
    """A message's bytes behind their length."""
    file = io.BytesIO()
    proto.serialize_length_prefixed(message, file)
    return file.getvalue()


def written(nodes, version="1.0.0"):
    """A file's bytes."""
    return b"".join(map(delimited, (schema.Metadata(version=version), *nodes)))


def attribute(name, **value):
    """An attribute, such as attribute("comm_size", int64_val=4)."""
    return MESSAGES["Attribute"](name=name, **value)


def compute(number, name, micros, *deps, **others):
    """A compute node."""
    attributes = [attribute("is_cpu_op", bool_val=False)]
    return MESSAGES["Node"](
        id=number, name=name, type=4, duration_micros=micros, data_deps=deps, attr=attributes, **others
    )


def collective(number, name, nbytes, *deps, kind=0, **others):
    """A collective, by default an all-reduce."""
    attributes = [attribute("comm_type", int64_val=kind), attribute("comm_size", int64_val=nbytes)]
    return MESSAGES["Node"](id=number, name=name, type=7, data_deps=deps, attr=attributes, **others)
