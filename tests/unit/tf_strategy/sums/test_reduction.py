"""Which tensors share which bucket."""

from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.reduction import Tensors, members_of

WIRES = st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.INT64])
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
REDUCTIONS = st.builds(
    lambda op, pairs: Tensors(op, tuple(wire for wire, _ in pairs), tuple(shape for _, shape in pairs)),
    st.sampled_from([Op.SUM, Op.AVERAGE]),
    st.lists(st.tuples(WIRES, SHAPES), min_size=1, max_size=8),
)


@given(REDUCTIONS, st.integers(1, 1 << 14))
def test_every_tensor_lies_whole_in_exactly_one_bucket_of_its_type(tensors, bucket_bytes):
    plans = tensors.plans(bucket_bytes)
    assert sorted(number for plan in plans for number in members_of(plan)) == list(range(len(tensors.shapes)))
    for plan in plans:
        ends = 0
        for number, slot in zip(members_of(plan), plan.layout.slots, strict=True):
            extent = 1
            for length in tensors.shapes[number]:
                extent *= length
            assert plan.descriptor.dtype == tensors.wires[number]
            assert plan.descriptor.op == tensors.op
            assert slot.num_elements == extent
            assert slot.offset_elements >= ends
            ends = slot.offset_elements + extent
        assert ends <= plan.layout.num_elements


@given(REDUCTIONS)
def test_buckets_are_planned_as_backward_goes_from_the_last_tensor_to_the_first(tensors):
    alike = Tensors(tensors.op, (DType.FLOAT32,) * len(tensors.shapes), tensors.shapes)
    for plan in alike.plans(1):
        assert list(members_of(plan)) == sorted(members_of(plan), reverse=True)
    last = [max(members_of(plan)) for plan in alike.plans(1)]
    assert last == sorted(last, reverse=True)


@given(REDUCTIONS, REDUCTIONS)
def test_reductions_that_differ_in_anything_use_other_keys(one, other):
    names = [{plan.descriptor.name for plan in tensors.plans(1 << 10)} for tensors in (one, other)]
    assert (names[0] == names[1]) is (one == other)
    assert (one == other) or not names[0] & names[1]
    assert (one.place == other.place) is (one == other)


def test_bytes_and_words_of_a_reduction():
    tensors = Tensors(Op.AVERAGE, (DType.FLOAT32, DType.BFLOAT16), ((3, 4), ()))
    assert tensors.nbytes == 3 * 4 * 4 + 2
    assert str(tensors.place) == "a mean (float32[3, 4], bfloat16[])"
