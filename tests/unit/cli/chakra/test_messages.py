"""Chakra's files: what is written comes back, byte for byte as others read it; what is no trace is named by record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.cli.chakra.messages import Collective, Int64, Node, NodeType, TraceFileError, decoded, encoded, metadata_of
from tests.support.chakra_schema import (
    ATTRIBUTE_FIELDS,
    MESSAGES,
    attribute,
    collective,
    compute,
    delimited,
    parsed,
    written,
)

NUMBER = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1).map(Int64)
VALUES = st.one_of(st.booleans(), st.floats(allow_nan=False), st.text(), NUMBER, SIGNED)
NODES = st.builds(
    Node, id=NUMBER, name=st.text(), type=st.sampled_from(NodeType), ctrl_deps=st.lists(NUMBER).map(tuple),
    data_deps=st.lists(NUMBER).map(tuple), start_us=NUMBER, duration_us=NUMBER,
    attributes=st.dictionaries(st.text(), VALUES, max_size=4),
)  # fmt: skip


def value_of(message):
    """What an attribute of the protobuf package holds, as coarse has it."""
    kind = message.WhichOneof("value")
    value = getattr(message, kind)
    return Int64(value) if kind == "int64_val" else value


@given(st.lists(NODES, max_size=4), st.dictionaries(st.text(), VALUES, max_size=3))
def test_protobuf_reads_what_coarse_writes(nodes, about):
    metadata, found = parsed(encoded(nodes, about))
    assert metadata.version == "1.0.0"
    assert {each.name: value_of(each) for each in metadata.attr} == about
    assert len(found) == len(nodes)
    for node, message in zip(nodes, found, strict=True):
        assert (message.id, message.name, message.type) == (node.id, node.name, node.type)
        assert (tuple(message.ctrl_deps), tuple(message.data_deps)) == (node.ctrl_deps, node.data_deps)
        assert (message.start_time_micros, message.duration_micros) == (node.start_us, node.duration_us)
        assert {each.name: value_of(each) for each in message.attr} == node.attributes


def test_coarse_reads_every_kind_of_value_that_protobuf_writes():
    values = {name: -7 if name.startswith(("int", "sint", "sfixed")) else 7 for name in ATTRIBUTE_FIELDS}
    values |= {"double_val": 0.1, "float_val": 0.5, "bool_val": True, "string_val": "Größe"}
    attributes = [attribute(name, **{name: value}) for name, value in values.items()]
    attributes.append(attribute("involved_dim", bool_list=MESSAGES["BoolList"](values=[True, False])))
    info = MESSAGES["Info"](values="[1]", shapes="[[2, 3]]", types="['Tensor(float)']")
    message = MESSAGES["Node"](
        id=2**63, name="add", type=4, ctrl_deps=[1], data_deps=[300, 2], inputs=info, attr=attributes
    )
    (node,) = decoded(written([message]))
    assert (node.id, node.name, node.type, node.ctrl_deps, node.data_deps) == (2**63, "add", 4, (1,), (300, 2))
    assert (node.input_shapes, node.input_types, node.record) == ("[[2, 3]]", "['Tensor(float)']", 2)
    assert node.attributes == values  # and nothing of the list


def test_the_bytes_are_those_that_the_wire_format_has():
    nodes = [
        Node(id=0, name="start", type=4, duration_us=5, attributes={"is_cpu_op": False}),
        Node(
            id=7, name="Größe", type=7, ctrl_deps=(0,), data_deps=(300, 2), start_us=9,
            attributes={"comm_type": Int64(0), "comm_size": Int64(-1), "tensor_size": 2**63, "share": 0.5, "note": ""},
        ),
    ]  # fmt: skip
    assert encoded(nodes, {"kind": "simulated", "workers": 4}).hex() == (
        "280a05312e302e3012120a046b696e64ea010973696d756c61746564120b0a07776f726b65727368041b1205737461727418043805520e0a"
        "0969735f6370755f6f70d8010075080712074772c3b6c39f6518072201002a03ac02023009520d0a09636f6d6d5f74797065480052160a09"
        "636f6d6d5f73697a6548ffffffffffffffffff0152180a0b74656e736f725f73697a65688080808080808080800152100a05736861726519"
        "000000000000e03f52090a046e6f7465ea0100"
    )


def test_dependencies_that_are_not_packed_are_read_too():
    body = bytes([5 << 3, 1, 5 << 3, 0xAC, 0x02])
    (node,) = decoded(written([]) + bytes([len(body)]) + body)
    assert node.data_deps == (1, 300)


WHOLE = written([compute(0, "forward", 5), collective(1, "w", 64, 0)])


@pytest.mark.parametrize("length", range(1, len(WHOLE)))
def test_a_file_that_ends_within_a_record_names_it(length):
    ends = [len(written([])), len(written([compute(0, "forward", 5)]))]
    if length in ends:
        assert len(list(decoded(WHOLE[:length]))) == ends.index(length)
        return
    with pytest.raises(TraceFileError, match=f"^record {sum(end <= length for end in ends) + 1} "):
        list(decoded(WHOLE[:length]))


def test_a_file_that_does_not_begin_with_metadata_is_refused():
    assert metadata_of(WHOLE) == {}
    with pytest.raises(TraceFileError, match="begins with its metadata"):
        metadata_of(delimited(compute(7, "forward", 5)))
    with pytest.raises(TraceFileError, match="empty"):
        metadata_of(b"")


def test_types_have_the_numbers_of_the_schema():
    assert (NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_COLL) == (4, 5, 7)
    assert (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE_SCATTER) == (0, 5, 7)
