import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import CoarseError
from coarse.protocol import codec
from coarse.protocol.codec import (
    RING_HEADER_BYTES,
    decode,
    decode_ring_header,
    encode,
    encode_ring_header,
)
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.features import part_of, use_features
from coarse.protocol.records import (
    Descriptor,
    KernelRecord,
    Push,
    Ready,
    Register,
    RingChunk,
    Tag,
    key_of,
)

RECORDS = (*typing.get_args(KernelRecord), *(kind for spec in use_features(()) for kind in part_of(spec.records)))
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
NARROW = {
    "client": U16,
    **dict.fromkeys(("epoch", "round", "first", "last", "shard", "step", "plan"), U32),
    **dict.fromkeys(("key", "version"), U64),
    **dict.fromkeys(("dtype", "op"), st.integers(0, 255)),
    "device": st.integers(-1, 2**31 - 1),
}
EXTENTS = st.lists(st.integers(0, 2**63 - 1), max_size=64).map(tuple)


def values_of(kind, name):
    """A strategy for a field of a record, by its annotation."""
    if kind is int:
        return NARROW.get(name, st.integers(-(2**63), 2**63 - 1))
    if name == "shape":
        return EXTENTS
    if kind is str:
        return st.text(st.characters(exclude_categories=["Cs"]))
    if typing.get_origin(kind) is tuple:
        first, *others = typing.get_args(kind)
        if others == [...]:
            return st.lists(values_of(first, ""), max_size=3).map(tuple)
        return st.tuples(*(values_of(part, "") for part in (first, *others)))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return records_of(kind)
    if float in (kind, *typing.get_args(kind)):  # a NaN comes back, and is not equal to itself
        return st.floats(allow_nan=False)
    return st.from_type(kind)


def records_of(kind):
    """A strategy for records of one kind."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hint, name) for name, hint in hints.items()})


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_record_comes_back_from_its_bytes(kind, data):
    record = data.draw(records_of(kind))
    came = decode(encode(record))
    assert came == record
    assert type(came) is kind


@pytest.mark.parametrize(("shape", "priority"), [((1,) * 65, 0), ((2**64,), 0), ((), 2**63)])
def test_what_has_no_room_in_a_registration_is_refused_by_name(shape, priority):
    descriptor = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), shape, priority)
    with pytest.raises(CoarseError, match=r"'w'.*priority"):
        encode(Register(0, 1, 1, descriptor, -1, -1))


@settings(max_examples=20)
@given(st.data())
def test_a_ring_header_comes_back_from_its_bytes_and_keeps_chunks_aligned(data):
    header = data.draw(records_of(RingChunk))
    frame = encode_ring_header(header)
    assert decode_ring_header(frame) == header
    assert len(frame) == RING_HEADER_BYTES
    assert RING_HEADER_BYTES % 8 == 0


def test_what_a_step_repeats_takes_few_bytes():
    assert len(encode(Push(1, 2**64 - 1, 3, 4, 5, 6, True))) <= 28
    assert len(encode(Ready(2**64 - 1, 0, 1, True))) <= 24


@pytest.mark.parametrize("kind", [0, 6, 15, 16 + len(codec._COLD), 255])
def test_bytes_of_no_record_are_refused_by_their_kind(kind):
    with pytest.raises(CoarseError, match=f"unknown kind {kind} "):
        decode(bytes([kind]) + b"[]")


def test_a_key_depends_on_the_name_alone_and_fits_64_bits():
    assert key_of("layer.weight") == key_of("layer." + "weight") < 2**64
    assert len({key_of(f"layer{i}.weight") for i in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("shape", "num_elements"), [((), 1), ((0,), 0), ((3, 0, 2), 0), ((2, 3, 4), 24)]
)
def test_a_descriptor_counts_elements_of_any_shape(shape, num_elements):
    descriptor = Descriptor("w", int(DType.FLOAT16), int(Op.SUM), shape, 0)
    assert descriptor.num_elements == num_elements
    assert descriptor.nbytes == 2 * num_elements


def test_a_descriptor_reads_as_people_write_it():
    assert (
        str(Descriptor("w", int(DType.BFLOAT16), int(Op.MIN), (2, 3), 0)) == "bfloat16[2, 3] op=min"
    )


def test_mpi_tags_differ():
    assert len({int(tag) for tag in Tag}) == len(Tag)
