"""Operations in graphs: every bucket is pushed once, none is taken before all are pushed, one reduction at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.operations import Operations, as_tensor, require_bits, stored, wire_type_of
from tf_strategy.sums.reduction import members_of

SIZE = 2


class FakeRounds:
    """Two workers that always have the same; it refuses calls in any order that could hang or mix workers."""

    def __init__(self, bucket_bytes: int = 64) -> None:
        self.num_workers, self.rank, self.bucket_bytes = SIZE, 0, bucket_bytes
        self.tells_gradients = False
        self.calls: list[tuple[object, ...]] = []
        self._under_way = None
        self._pushed: dict[int, list[np.ndarray]] = {}
        self._num_taken = 0

    def is_timed(self, tensors):
        return False

    def push(self, tensors, bucket, arrays, first_ago_s=0.0):
        assert self._under_way in (None, tensors), "two reductions at once"
        assert bucket not in self._pushed, "a bucket pushed twice"
        self._under_way = tensors
        self._pushed[bucket] = [array.copy() for array in arrays]
        self.calls.append(("push", bucket))

    def take(self, tensors, bucket):
        plans = tensors.plans(self.bucket_bytes)
        assert self._under_way == tensors
        assert len(self._pushed) == len(plans), "a wait before all is pushed"
        assert bucket == self._num_taken, "buckets taken out of order"
        self._num_taken += 1
        factor = SIZE if tensors.op is Op.SUM else 1
        results = [np.asarray(array * factor, array.dtype) for array in self._pushed[bucket]]
        assert [array.shape for array in results] == [tensors.shapes[number] for number in members_of(plans[bucket])]
        self.calls.append(("take", bucket))
        if self._num_taken == len(plans):
            self._under_way, self._pushed, self._num_taken = None, {}, 0
        return results

    def reduce(self, tensors, arrays):
        self._alone("reduce", [array.shape for array in arrays])
        return [np.asarray(array * (SIZE if tensors.op is Op.SUM else 1), array.dtype) for array in arrays]

    def broadcast(self, array, what):
        self._alone("broadcast", what, array.tolist())
        return np.zeros_like(array)

    def gather(self, array):
        self._alone("gather", array.tolist())
        return [array] * SIZE

    def _alone(self, *call):
        assert self._under_way is None, "two synchronisations at once"
        self.calls.append(call)


@pytest.fixture
def rounds():
    return FakeRounds()


@pytest.fixture
def operations(rounds):
    return Operations(rounds)


def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    return tf.function(function, autograph=False, **options)


def many():
    """Tensors of several types and buckets."""
    return [tf.random.stateless_normal([n, 3], [1, n]) for n in range(1, 9)] + [tf.constant([1.5], tf.float64)]


def test_every_bucket_is_pushed_once_and_taken_in_order_after_all(operations, rounds):
    result = compiled(lambda: operations.reduce(Op.SUM, many()))()
    num_buckets = len(rounds.calls) // 2
    assert num_buckets > 3
    assert sorted(rounds.calls[:num_buckets]) == [("push", bucket) for bucket in range(num_buckets)]
    assert rounds.calls[num_buckets:] == [("take", bucket) for bucket in range(num_buckets)]
    for found, tensor in zip(result, many(), strict=True):
        assert found.dtype == tensor.dtype
        np.testing.assert_allclose(found, SIZE * tensor.numpy())


def test_a_mean_and_half_types_keep_shape_and_type(operations):
    tensors = [tf.fill([2, 3], tf.constant(1.5, dtype)) for dtype in (tf.bfloat16, tf.float16, tf.float32)]
    results = compiled(lambda: operations.reduce(Op.AVERAGE, tensors[1:]))()
    for found, tensor in zip(results, tensors[1:], strict=True):
        assert found.dtype == tensor.dtype
        assert (found.numpy() == tensor.numpy()).all()
    (stored_as_bits,) = compiled(lambda: operations.reduce(Op.AVERAGE, tensors[:1]))()
    assert stored_as_bits.dtype == tf.bfloat16
    assert stored_as_bits.numpy().tobytes() == tensors[0].numpy().tobytes()


def test_reductions_follow_one_another_although_no_data_lies_between(operations, rounds):
    @compiled
    def several():
        operations.reduce(Op.SUM, many())
        operations.gather(tf.constant([1]))
        operations.reduce(Op.SUM, many()[:3])
        return operations.broadcast(tf.constant(2.0), "x")

    several()
    names = [call[0] for call in rounds.calls]
    first = names.index("gather")
    assert names[:first] == ["push"] * (first // 2) + ["take"] * (first // 2)
    assert names[-1] == "broadcast"
    assert set(names[first + 1 : -1]) == {"push", "take"}


def test_a_reduction_whose_result_nobody_uses_runs_all_the_same(operations, rounds):
    compiled(lambda: (operations.reduce(Op.SUM, many()), tf.constant(0))[1])()
    assert rounds.calls


def test_order_goes_through_nested_functions(operations, rounds):
    inner = compiled(lambda number: operations.reduce(Op.SUM, [tf.fill([3], number)])[0])

    @compiled
    def outer():
        first = inner(tf.constant(1.0))
        operations.gather(tf.constant([7]))
        return first + inner(tf.constant(2.0))

    assert outer().numpy().tolist() == [6.0] * 3
    assert [call[0] for call in rounds.calls] == ["push", "take", "gather", "push", "take"]


def test_turns_of_a_loop_reduce_one_after_the_other(operations, rounds):
    def body(number, total):
        reduced = operations.reduce(Op.SUM, many()[:4])
        return number + 1, total + operations.reduce(Op.SUM, [tf.cast(number, tf.float32)])[0] + 0 * reduced[0][0, 0]

    @compiled
    def loop():
        begin = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda number, _: number < 10, body, begin, parallel_iterations=10)[1]

    assert float(loop()) == SIZE * sum(range(10))
    names = [call[0] for call in rounds.calls]
    turn = names[: len(names) // 10]
    assert names == turn * 10


def test_a_branch_that_is_not_taken_reduces_nothing(operations, rounds):
    @compiled
    def branch(which):
        return tf.cond(which, lambda: operations.reduce(Op.SUM, [tf.constant(1.0)])[0], lambda: tf.constant(0.0))

    assert float(branch(tf.constant(False))) == 0.0
    assert not rounds.calls
    assert float(branch(tf.constant(True))) == SIZE
    assert rounds.calls == [("push", 0), ("take", 0)]


def test_shapes_that_a_graph_does_not_know_are_reduced_at_once(operations, rounds):
    function = compiled(
        lambda rows: operations.reduce(Op.SUM, [rows])[0], input_signature=[tf.TensorSpec([None, 2])]
    )
    for length in (1, 4):
        assert function(tf.ones([length, 2])).numpy().tolist() == [[SIZE, SIZE]] * length
    assert rounds.calls == [("reduce", [(1, 2)]), ("reduce", [(4, 2)])]


def test_eager_reductions_run_at_once(operations, rounds):
    (found,) = operations.reduce(Op.SUM, [tf.constant([1.0, 2.0])])
    assert found.numpy().tolist() == [2.0, 4.0]
    assert [part.numpy().tolist() for part in operations.gather(tf.constant([3]))] == [[3], [3]]
    assert float(operations.broadcast(tf.constant(5.0), "x")) == 0.0
    assert [call[0] for call in rounds.calls] == ["reduce", "gather", "broadcast"]


def test_what_comes_again_goes_bucket_by_bucket_in_eager_mode_too(operations, rounds):
    found = operations.reduce(Op.SUM, many(), exact=())
    num_buckets = len(rounds.calls) // 2
    assert num_buckets > 3
    assert rounds.calls == [(kind, bucket) for kind in ("push", "take") for bucket in range(num_buckets)]
    for total, tensor in zip(found, many(), strict=True):
        np.testing.assert_allclose(total, SIZE * tensor.numpy())


def test_a_broadcast_within_a_graph_keeps_its_shape(operations):
    traced = compiled(lambda: operations.broadcast(tf.ones([2, 3]), "x")).get_concrete_function()
    assert traced.structured_outputs.shape == (2, 3)
    assert not traced().numpy().any()


@pytest.mark.parametrize("way", [lambda function: function(), lambda function: compiled(function)()])
def test_what_cannot_be_combined_is_refused_before_anything_is_pushed(operations, rounds, way):
    for tensor in (tf.constant(True), tf.constant("a"), tf.constant(1j, tf.complex64), tf.constant(1, tf.int8)):
        with pytest.raises(TypeError, match="cannot be synchronised"):
            way(lambda tensor=tensor: operations.reduce(Op.SUM, [tf.constant(1.0), tensor]))
    with pytest.raises(TypeError, match="mean of integers"):
        way(lambda: operations.reduce(Op.AVERAGE, [tf.constant(1.0), tf.constant(1)]))
    for refused in (operations.gather, lambda tensor: operations.broadcast(tensor, "x")):
        with pytest.raises(TypeError, match=r"tf\.string cannot be sent"):
            way(lambda refused=refused: refused(tf.constant(["a"])))
    assert not rounds.calls


@pytest.mark.parametrize("what", ["reduce", "gather", "broadcast"])
def test_a_function_compiled_by_xla_is_refused_by_name(operations, rounds, what):
    def train_step():
        x = tf.constant([1.0])
        if what == "reduce":
            return operations.reduce(Op.SUM, [x])
        return operations.gather(x) if what == "gather" else operations.broadcast(x, "x")

    with pytest.raises(ConfigError, match=r"train_step has jit_compile=True.*pass jit_compile=False"):
        compiled(train_step, jit_compile=True)()
    assert not rounds.calls


ADDED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8)
OTHERS = (tf.bool, tf.string, tf.complex64, tf.complex128, tf.int8, tf.uint16, tf.resource, tf.variant, tf.qint8)


@pytest.mark.parametrize("dtype", ADDED, ids=lambda dtype: dtype.name)
def test_a_type_that_devices_add_is_stored_as_they_store_it(dtype):
    tensor = tf.cast([1.0, 2.5], dtype)
    wire = wire_type_of(dtype, "a sum")
    assert wire.label == dtype.name
    assert stored(tensor).numpy().dtype == DType(wire).storage
    assert stored(tensor).numpy().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", OTHERS, ids=lambda dtype: dtype.name)
def test_a_type_that_devices_do_not_add_is_refused_with_the_remedy(dtype):
    with pytest.raises(TypeError, match=rf"a sum: tensors of {dtype.name} cannot be synchronised; cast them") as caught:
        wire_type_of(dtype, "a sum")
    for known in ADDED:
        assert known.name in str(caught.value)


def test_what_is_no_block_of_bytes_is_refused_by_name():
    for dtype in (tf.string, tf.resource, tf.variant):
        with pytest.raises(TypeError, match=f"the first value of 'x': a tensor of tf.{dtype.name} cannot be sent"):
            require_bits(dtype, "the first value of 'x'")
    for dtype in (*ADDED, tf.bool, tf.complex64, tf.uint16):
        require_bits(dtype, "x")


def test_a_number_becomes_a_tensor_of_the_type_of_what_it_is_for():
    variable = tf.Variable(1.0, dtype=tf.float64)
    for value in (2, 2.0, np.float32(2), np.int64(2)):
        assert as_tensor(value, variable).dtype == tf.float64
    assert as_tensor(2).dtype == tf.int32
    assert as_tensor(2, "CPU:0").dtype == tf.int32


def test_tensors_rows_and_variables_stay_what_they_are():
    tensor = tf.constant([1.0])
    for value in (tensor, tf.Variable(tensor), tf.IndexedSlices(tensor, tf.constant([0]))):
        assert as_tensor(value, tf.Variable(1, dtype=tf.int64)) is value
