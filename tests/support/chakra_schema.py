"""Chakra's messages by the protobuf package, from a descriptor of their fields' numbers: a check of coarse's own."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
ATTRIBUTE_FIELDS = {
    "double_val": (3, FIELD.TYPE_DOUBLE), "float_val": (5, FIELD.TYPE_FLOAT), "int32_val": (7, FIELD.TYPE_INT32),
    "int64_val": (9, FIELD.TYPE_INT64), "uint32_val": (11, FIELD.TYPE_UINT32), "uint64_val": (13, FIELD.TYPE_UINT64),
    "sint32_val": (15, FIELD.TYPE_SINT32), "sint64_val": (17, FIELD.TYPE_SINT64),
    "fixed32_val": (19, FIELD.TYPE_FIXED32), "fixed64_val": (21, FIELD.TYPE_FIXED64),
    "sfixed32_val": (23, FIELD.TYPE_SFIXED32), "sfixed64_val": (25, FIELD.TYPE_SFIXED64),
    "bool_val": (27, FIELD.TYPE_BOOL), "string_val": (29, FIELD.TYPE_STRING),
}  # fmt: skip
"""Of the values that an attribute may have, those that are no list."""


def _add(file, name, *fields):
    message = file.message_type.add(name=name)
    for field, number, kind, repeated in fields:
        added = message.field.add(name=field, number=number)
        added.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
        if isinstance(kind, str):
            added.type, added.type_name = FIELD.TYPE_MESSAGE, f".chakra.{kind}"
        else:
            added.type = kind
    return message


def _messages():
    file = descriptor_pb2.FileDescriptorProto(name="chakra_of_tests.proto", package="chakra", syntax="proto3")
    _add(file, "BoolList", ("values", 1, FIELD.TYPE_BOOL, True))
    values = [(name, number, kind, False) for name, (number, kind) in ATTRIBUTE_FIELDS.items()]
    named = [("name", 1, FIELD.TYPE_STRING, False), ("doc_string", 2, FIELD.TYPE_STRING, False)]
    attribute = _add(file, "Attribute", *named, *values, ("bool_list", 28, "BoolList", False))
    attribute.oneof_decl.add(name="value")
    for field in attribute.field[2:]:
        field.oneof_index = 0
    texts = (("values", 1), ("shapes", 2), ("types", 3))
    _add(file, "Info", *((name, number, FIELD.TYPE_STRING, False) for name, number in texts))
    _add(file, "Metadata", ("version", 1, FIELD.TYPE_STRING, False), ("attr", 2, "Attribute", True))
    numbers = [("id", 1, False), ("ctrl_deps", 4, True), ("data_deps", 5, True)]
    numbers += [("start_time_micros", 6, False), ("duration_micros", 7, False)]
    _add(
        file, "Node", *((name, number, FIELD.TYPE_UINT64, repeated) for name, number, repeated in numbers),
        ("name", 2, FIELD.TYPE_STRING, False), ("type", 3, FIELD.TYPE_INT32, False), ("inputs", 8, "Info", False),
        ("outputs", 9, "Info", False), ("attr", 10, "Attribute", True),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Attribute", "Metadata", "Node", "Info", "BoolList")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}")) for name in names}


MESSAGES = _messages()


def parsed(data):
    """(metadata, nodes) of a file."""
    messages = []
    while data:
        length = shift = at = 0
        while True:
            length |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                break
        messages.append(data[at : at + length])
        assert len(messages[-1]) == length
        data = data[at + length :]
    return MESSAGES["Metadata"].FromString(messages[0]), [MESSAGES["Node"].FromString(each) for each in messages[1:]]


def written(nodes, version="1.0.0"):
    """A file's bytes."""
    parts = []
    for message in (MESSAGES["Metadata"](version=version), *nodes):
        body, length = message.SerializeToString(), len(message.SerializeToString())
        while length > 0x7F:
            parts.append(bytes([length & 0x7F | 0x80]))
            length >>= 7
        parts += [bytes([length]), body]
    return b"".join(parts)


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
