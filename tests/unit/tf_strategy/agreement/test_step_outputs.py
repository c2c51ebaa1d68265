"""Numbers in a step's logs become means over workers, in one reduction; everything else stays as it is."""

import numpy as np
import pytest
import tensorflow as tf

from coarse.protocol.dtypes import Op
from tf_strategy.agreement.step_outputs import means_of_all


class FakeOperations:
    """Two workers, of which the other has `more` than this one in every number."""

    def __init__(self, num_workers: int = 2, more: float = 1.0) -> None:
        self.num_workers, self.more = num_workers, more
        self.num_reductions = 0

    def reduce(self, op, tensors):
        assert op is Op.SUM
        self.num_reductions += 1
        return [2 * tensor + self.more for tensor in tensors]


@pytest.fixture(params=[lambda function: function, tf.function], ids=["eagerly", "in a function"])
def run(request):
    """How a step is called."""
    return request.param


KINDS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def test_every_number_is_the_mean_over_workers_in_shape_and_type_by_one_reduction(run):
    operations = FakeOperations()
    given = {
        "nested": [{kind.name: tf.constant([[1.5, 2.5]], kind)} for kind in KINDS],
        "long": tf.constant(2**40 + 1, tf.int64),
        "numpy": np.float64(1.5),
        "python": (1.5, 3),
        "empty": tf.zeros((0, 3)),
    }
    found = run(lambda: means_of_all(operations, given))()
    for kind, logs in zip(KINDS, found["nested"], strict=True):
        assert logs[kind.name].dtype == kind
        assert tf.cast(logs[kind.name], tf.float32).numpy().tolist() == [[2.0, 3.0]]
    assert found["long"].dtype == tf.int64
    assert int(found["long"]) == 2**40 + 1
    assert (float(found["numpy"]), float(found["python"][0]), int(found["python"][1])) == (2.0, 2.0, 3)
    assert found["empty"].shape == (0, 3)
    assert operations.num_reductions == 1


@pytest.mark.parametrize(("number", "mean"), [(2, 2), (-3, -2), (0, 0)])
def test_a_mean_of_integers_is_rounded_towards_zero_as_tensorflow_rounds_it(run, number, mean):
    found = run(lambda: means_of_all(FakeOperations(), {"rows": tf.constant(number)}))()
    assert found["rows"].dtype == tf.int32
    assert int(found["rows"]) == mean == int(tf.reduce_mean([number, number + 1]))


def test_a_whole_mean_of_many_workers_integers_is_exact():
    found = means_of_all(FakeOperations(49, more=47 * 3), [tf.constant(3)])  # 3 on each of them
    assert int(found[0]) == 3


def test_numbers_of_a_shape_that_is_not_known_before_are_reduced():
    operations = FakeOperations()

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return means_of_all(operations, {"one": x, "two": tf.reduce_sum(x)})

    found = step(tf.ones([3, 2]))
    assert found["one"].numpy().tolist() == [[1.5, 1.5]] * 3
    assert float(found["two"]) == 6.5


def test_what_is_no_number_stays_as_it_is():
    operations = FakeOperations()
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    given = [None, "text", tf.constant("text"), tf.constant(True), tf.Variable(1.0), ragged, {}]
    found = means_of_all(operations, given)
    assert all(one is other for one, other in zip(found[:-1], given[:-1], strict=True))
    assert found[-1] == {}
    assert means_of_all(operations, {}) == {}
    assert operations.num_reductions == 0


def test_one_worker_has_its_own_logs():
    operations = FakeOperations(1)
    given = {"loss": tf.constant(1.0)}
    assert means_of_all(operations, given) is given
    assert operations.num_reductions == 0
