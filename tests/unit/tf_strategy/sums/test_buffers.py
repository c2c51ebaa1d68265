"""What is filled into buckets comes out again; buffers for any shape grow neither in number nor in bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coarse.client.handle import Handle
from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.buffers import NUM_SLOTS, PIECE_BYTES, ReductionSite, pieces_of, streamed
from tf_strategy.sums.reduction import ReducedTensors

WIRES = (DType.FLOAT32, DType.INT64, DType.BFLOAT16, DType.UINT8)
LISTS = st.lists(st.tuples(st.sampled_from(WIRES), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=6)


def tensors_of(kinds: list[tuple[DType, list[int]]]) -> ReducedTensors:
    wires, shapes = zip(*kinds, strict=True)
    return ReducedTensors(Op.SUM, wires, tuple(map(tuple, shapes)))


def arrays_of(tensors: ReducedTensors) -> list[np.ndarray]:
    """Numbers below 100 in the types that the wire stores."""
    numbers = np.random.default_rng(0)
    pairs = zip(tensors.wires, tensors.shapes, strict=True)
    return [np.asarray(numbers.integers(0, 100, shape)).astype(wire.storage) for wire, shape in pairs]


class TwoAlike:
    """A client beside another that pushes the same; it refuses a buffer that is used before its result was taken."""

    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray] = {}
        self._names: list[str] = []
        self.under_way: set[str] = set()
        self.most_under_way = 0

    def host_array(self, descriptor):
        assert descriptor.name not in self.under_way, "a buffer that is in flight was touched"
        fresh = np.full(descriptor.shape, 77, DType(descriptor.dtype).storage)
        return self.buffers.setdefault(descriptor.name, fresh)

    def push_pull(self, descriptor, array, out):
        assert array is None
        self.under_way.add(descriptor.name)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        self._names.append(descriptor.name)
        return Handle(self, len(self._names) - 1, out)

    def take(self, key, out, timeout_s):
        name = self._names[key]
        assert out is self.buffers[name]
        self.under_way.remove(name)
        out *= out.dtype.type(2)
        return out, True


@given(LISTS, st.sampled_from([8, 64, PIECE_BYTES]))
def test_every_tensor_comes_out_combined_in_its_shape_and_type(kinds, piece_bytes):
    tensors, client = tensors_of(kinds), TwoAlike()
    arrays = arrays_of(tensors)
    for _ in range(2):
        results = streamed(client, pieces_of(tensors, piece_bytes), arrays)
        for result, array in zip(results, arrays, strict=True):
            assert result.dtype == array.dtype
            assert np.array_equal(result, array * array.dtype.type(2))
            assert result.shape == array.shape
    assert not client.under_way


def test_a_few_pieces_are_in_flight_at_once_and_no_more():
    tensors, client = tensors_of([(DType.FLOAT32, [1000])]), TwoAlike()
    streamed(client, pieces_of(tensors, 400), arrays_of(tensors))
    assert client.most_under_way == NUM_SLOTS


def test_what_other_sums_left_in_a_buffer_counts_as_zero():
    client = TwoAlike()
    for length in (64, 3, 64):
        tensors = tensors_of([(DType.FLOAT32, [length])])
        streamed(client, pieces_of(tensors), arrays_of(tensors))
        (buffer,) = client.buffers.values()
        assert not buffer[length:].any()


@given(LISTS)
def test_pieces_hold_every_byte_once_and_whole_elements(kinds):
    tensors = tensors_of(kinds)
    pieces = pieces_of(tensors, 16)
    found = sorted(
        (section.part, byte) for piece in pieces for section in piece.sections for byte in range(*section[1:3])
    )
    assert found == [(part, byte) for part, nbytes in enumerate(tensors.each_nbytes) for byte in range(nbytes)]
    for piece in pieces:
        itemsize = DType(piece.descriptor.dtype).itemsize
        assert {tensors.wires[section.part] for section in piece.sections} == {DType(piece.descriptor.dtype)}
        assert all(edge % itemsize == 0 for section in piece.sections for edge in section[1:])
        assert sum(section.end - section.begin for section in piece.sections) <= piece.descriptor.nbytes


@given(st.lists(st.integers(0, 8 * PIECE_BYTES), max_size=40))
def test_buffers_of_any_number_of_lengths_have_a_bound(lengths):
    buffers = {
        piece.descriptor
        for length in lengths
        for piece in pieces_of(tensors_of([(DType.FLOAT32, [length])]))
    }
    assert len({descriptor.name for descriptor in buffers}) == len(buffers)
    assert sum(descriptor.nbytes for descriptor in buffers) <= 2 * NUM_SLOTS * PIECE_BYTES


TENSORS = ReducedTensors(
    Op.SUM, (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT32), ((2, 3), (4,), (5,), ())
)


class Doubled:
    """A reducer whose buckets are plain memory."""

    def __init__(self) -> None:
        self.memories: list[np.ndarray] = []

    def memory_of(self, descriptor, num_exact=0):
        memory = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        self.memories.append(memory)
        return memory


def test_each_tensor_has_a_place_of_its_own_in_its_bucket():
    reducer = Doubled()
    site = ReductionSite(TENSORS, TENSORS.plans(1 << 20), reducer)
    storages = [np.float32, np.float64, np.uint16, np.float32]
    arrays = [
        (np.arange(int(np.prod(shape)), dtype=storage) + 10 * number).reshape(shape)
        for number, (shape, storage) in enumerate(zip(TENSORS.shapes, storages, strict=True))
    ]
    for bucket, members in enumerate(site.members):
        site.fill(bucket, [arrays[number] for number in members])
    for bucket, members in enumerate(site.members):
        for number, result in zip(members, site.results(bucket), strict=True):
            assert result.base is reducer.memories[bucket]
            assert np.array_equal(result.reshape(arrays[number].shape), arrays[number])
    assert sum(site.nbytes_of(bucket) for bucket in range(site.num_buckets)) == TENSORS.nbytes
