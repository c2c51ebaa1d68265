"""What a strategy promises whose device is not the one where coarse reads and writes, as a worker's GPU is not."""

import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.loop_claims import in_both_ways
from tests.mpi.tf.training import compiled, fit, mlp, require_same_everywhere, rows, strategy

ELSEWHERE, FIRST = "CPU:1", "CPU:0"


def is_on(tensor: object, device: str) -> bool:
    """Whether an eager tensor, or a variable, lies on a device."""
    return tensor.device.endswith(device)


def variables_lie_on_the_strategys_device() -> None:
    with strategy().scope():
        variable = tf.Variable(tf.ones(4))
        model = compiled(mlp())
    assert is_on(variable, ELSEWHERE)
    fit(model)
    for weight in model.weights:
        assert is_on(weight.value, ELSEWHERE), weight.value.device
    require_same_everywhere(model.get_weights())


def tensors_are_summed_wherever_they_lie() -> None:
    for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.int32, tf.float64):
        for device in (ELSEWHERE, FIRST):

            def summed(dtype: tf.DType = dtype, device: str = device) -> tf.Tensor:
                with tf.device(device):
                    value = tf.cast(tf.range(5), dtype) * (coarse.rank() + 1)
                return tf.distribute.get_replica_context().all_reduce("SUM", value)

            for run in in_both_ways(summed):
                wanted = np.arange(5) * sum(range(1, coarse.size() + 1))
                assert np.array_equal(tf.cast(run(), tf.float64).numpy(), wanted)


def a_tensor_may_change_after_its_sum() -> None:
    with strategy().scope():
        variable = tf.Variable(tf.fill([300], float(coarse.rank() + 1)))

    def step() -> tf.Tensor:
        summed = tf.distribute.get_replica_context().all_reduce("SUM", variable.read_value())
        variable.assign(tf.zeros([300]), read_value=False)
        return summed

    for run in in_both_ways(step):
        strategy().run(lambda: variable.assign(tf.fill([300], 1.0)))
        assert (run().numpy() == coarse.size()).all()


def results_come_to_the_devices_of_their_destinations() -> None:
    x, _ = rows(4)
    with tf.device(ELSEWHERE):
        value = tf.constant(x)
    for destination in (ELSEWHERE, FIRST):
        place = f"/job:localhost/replica:0/task:0/{destination}"
        found = strategy().extended.reduce_to("MEAN", value, destinations=place)
        assert is_on(found, destination), found.device
        assert np.allclose(found.numpy(), x)


def rows_of_all_come_from_elsewhere() -> None:
    def gathered() -> tf.Tensor:
        with tf.device(ELSEWHERE):
            own = tf.fill([1 + coarse.rank(), 2], float(coarse.rank()))
        return tf.distribute.get_replica_context().all_gather(own, 0)

    wanted = np.concatenate([np.full((1 + rank, 2), float(rank)) for rank in range(coarse.size())])
    for run in in_both_ways(gathered):
        assert np.array_equal(run().numpy(), wanted)


CLAIMS = (
    variables_lie_on_the_strategys_device,
    tensors_are_summed_wherever_they_lie,
    a_tensor_may_change_after_its_sum,
    results_come_to_the_devices_of_their_destinations,
    rows_of_all_come_from_elsewhere,
)
