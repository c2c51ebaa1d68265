"""Which tensors share which bucket; memory for results is used again, but never while a tensor lives in it."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.reduction import ReducedTensors, ResultPool, members_of

WIRES = st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.INT64])
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
REDUCTIONS = st.builds(
    lambda op, pairs: ReducedTensors(op, tuple(wire for wire, _ in pairs), tuple(shape for _, shape in pairs)),
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
    alike = ReducedTensors(tensors.op, (DType.FLOAT32,) * len(tensors.shapes), tensors.shapes)
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
    tensors = ReducedTensors(Op.AVERAGE, (DType.FLOAT32, DType.BFLOAT16), ((3, 4), ()))
    assert tensors.nbytes == 3 * 4 * 4 + 2
    assert str(tensors.place) == "a mean (float32[3, 4], bfloat16[])"


LENGTH = 1000
"""Of float32: more than TensorFlow would copy for itself."""


_returned: list[np.ndarray] = []


@tf.function(autograph=False)
def from_an_operation():
    """As the strategy's results become tensors: an operation returns the array last put into `_returned`."""
    return tf.numpy_function(_returned.pop, [], tf.float32, stateful=True)


def tensor_of(pool: ResultPool, value: float) -> tf.Tensor:
    """LENGTH values in the pool's memory."""
    _returned.append(pool.copy_of(np.full(LENGTH, value, np.float32)))
    return from_an_operation()


def num_memories(pool: ResultPool) -> int:
    return sum(map(len, pool._memories.values()))


def as_it_is(tensor):
    return tensor


def sliced(tensor):
    return tensor[10:900]


def assigned(tensor):
    return tf.Variable(tensor)


def captured(tensor):
    return tf.function(lambda: tensor + 0.0, autograph=False)


def made_an_array(tensor):
    return tensor.numpy()


KEPT = [as_it_is, sliced, assigned, captured, made_an_array]


def numbers(kept):
    """What is in something that was kept."""
    return np.asarray(kept() if callable(kept) else kept)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(KEPT), st.integers(0, 3)), max_size=8))
def test_nothing_that_lives_is_overwritten(steps):
    pool = ResultPool()
    living = []
    for number, (keep, num_dropped) in enumerate(steps):
        tensor = tensor_of(pool, number)
        living.append((number, keep(tensor)))
        del tensor
        for other, kept in living:
            assert (numbers(kept) == other).all(), f"{keep.__name__} overwrote step {other}"
        del living[:num_dropped]


@pytest.mark.parametrize("keep", KEPT)
def test_memory_is_used_again_once_all_in_it_is_gone(keep):
    pool = ResultPool()
    for number in range(6):
        kept = keep(tensor_of(pool, number))
        assert (numbers(kept) == number).all()
        del kept
        if keep is captured:
            gc.collect()  # functions are in cycles
    assert num_memories(pool) <= 2, "memory grows with the number of steps"


def test_as_much_memory_stays_as_lives_at_once():
    pool = ResultPool()
    alive: list[tf.Tensor] = []
    for number in range(60):
        alive.append(tensor_of(pool, number))
        if len(alive) > 3:
            del alive[0]
    assert num_memories(pool) <= 5


def test_a_tensor_lives_in_the_memory_itself():
    """Else every result would be copied twice, and nothing would have to be kept."""
    pool = ResultPool()
    tensor = tensor_of(pool, 1.0)
    ((memory,),) = pool._memories.values()
    memory.view(np.float32)[:] = -1.0
    assert (tensor.numpy() == -1.0).all()


@given(st.sampled_from(["<f4", "<f8", "<i8", "u1", "<u2"]), st.lists(st.integers(1, 9), max_size=3))
def test_a_copy_has_the_values_type_and_shape_and_is_aligned(dtype, shape):
    pool = ResultPool()
    array = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    for _ in range(2):
        copy = pool.copy_of(array)
        assert copy.dtype == array.dtype
        assert np.array_equal(copy, array)
        assert copy.shape == array.shape
        assert copy.ctypes.data % 64 == 0
