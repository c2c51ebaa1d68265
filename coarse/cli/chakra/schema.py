"""Chakra's messages for the protobuf package, made at import from the numbers of their fields.

The numbers are those of MLCommons' schema (mlcommons/chakra, schema/protobuf/et_def.proto). Descriptors made at run
time fit any version of the package; lists, outputs and storage are read and passed over.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
ATTRIBUTE_FIELDS = {
    "double_val": (3, _FIELD.TYPE_DOUBLE), "float_val": (5, _FIELD.TYPE_FLOAT), "int32_val": (7, _FIELD.TYPE_INT32),
    "int64_val": (9, _FIELD.TYPE_INT64), "uint32_val": (11, _FIELD.TYPE_UINT32), "uint64_val": (13, _FIELD.TYPE_UINT64),
    "sint32_val": (15, _FIELD.TYPE_SINT32), "sint64_val": (17, _FIELD.TYPE_SINT64),
    "fixed32_val": (19, _FIELD.TYPE_FIXED32), "fixed64_val": (21, _FIELD.TYPE_FIXED64),
    "sfixed32_val": (23, _FIELD.TYPE_SFIXED32), "sfixed64_val": (25, _FIELD.TYPE_SFIXED64),
    "bool_val": (27, _FIELD.TYPE_BOOL), "string_val": (29, _FIELD.TYPE_STRING),
}  # fmt: skip
"""Number and type of each field for an attribute's value, without the list."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="coarse/chakra.proto", package="chakra", syntax="proto3")

    def add(name: str, *fields: tuple[str, int, int | str, bool]) -> descriptor_pb2.DescriptorProto:
        """Add a message; a field is (name, number, type or message, whether it is repeated)."""
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".chakra.{kind}"
            else:
                added.type = kind
        return message

    add("BoolList", ("values", 1, _FIELD.TYPE_BOOL, True))
    values = [(name, number, kind, False) for name, (number, kind) in ATTRIBUTE_FIELDS.items()]
    texts = [("name", 1, _FIELD.TYPE_STRING, False), ("doc_string", 2, _FIELD.TYPE_STRING, False)]
    attribute = add("Attribute", *texts, *values, ("bool_list", 28, "BoolList", False))
    attribute.oneof_decl.add(name="value")
    for field in attribute.field[len(texts) :]:
        field.oneof_index = 0
    infos = (("values", 1), ("shapes", 2), ("types", 3))
    add("Info", *((name, number, _FIELD.TYPE_STRING, False) for name, number in infos))
    add("Metadata", ("version", 1, _FIELD.TYPE_STRING, False), ("attr", 2, "Attribute", True))
    numbers = [("id", 1, False), ("ctrl_deps", 4, True), ("data_deps", 5, True)]
    numbers += [("start_time_micros", 6, False), ("duration_micros", 7, False)]
    add(
        "Node", *((name, number, _FIELD.TYPE_UINT64, is_repeated) for name, number, is_repeated in numbers),
        ("name", 2, _FIELD.TYPE_STRING, False), ("type", 3, _FIELD.TYPE_INT32, False), ("inputs", 8, "Info", False),
        ("outputs", 9, "Info", False), ("attr", 10, "Attribute", True),
    )  # fmt: skip
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
Attribute, Metadata, NodeMessage, Info, BoolList = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"chakra.{name}"))
    for name in ("Attribute", "Metadata", "Node", "Info", "BoolList")
)
