"""How dual synchronisation measures a step of TensorFlow's, and that all workers decide alike."""

import threading
import time
from collections.abc import Callable
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.parallel.data.pass_timer import PassTimer
from coarse.session import current
from tests.mpi.tf.two_workers import STRATEGY, assert_alike, numbers

_LONG_S = 0.25
"""Nothing is asserted about it: it keeps apart what is compared by order."""


def _when_backward_passes(note: Callable[[float], None]) -> Callable[[tf.Tensor], tf.Tensor]:
    """The identity, whose gradient is held up for a while and notes when it goes on."""

    def held_up(grad: np.ndarray) -> np.ndarray:
        threading.Event().wait(_LONG_S)
        note(time.perf_counter())
        threading.Event().wait(_LONG_S)
        return grad

    @tf.custom_gradient
    def gate(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def backward(grad: tf.Tensor) -> tf.Tensor:
            passed = tf.numpy_function(held_up, [grad], tf.float32, stateful=False)  # or all wait
            passed.set_shape(grad.shape)
            return passed

        return tf.identity(value), backward

    return gate


def forward_ends_with_the_first_gradient_rather_than_the_first_push():
    """Of one bucket: its last variable's gradient comes before backward passes the gate, its first one's after."""
    passed_s, seen = [], []
    on_gradient = PassTimer.on_gradient

    def spied(timer: PassTimer, ago_s: float = 0.0) -> None:
        seen.append((time.perf_counter() - ago_s, ago_s))
        on_gradient(timer, ago_s)

    with STRATEGY.scope():
        first, last = tf.Variable(tf.ones([1024])), tf.Variable(tf.ones([1024]))
    gate = _when_backward_passes(passed_s.append)

    def replica() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gate(first * 2.0) * last)
        return tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, [first, last]))

    step = tf.function(lambda: STRATEGY.run(replica))
    step()  # is not timed
    passed_s.clear()
    with mock.patch.object(PassTimer, "on_gradient", spied):
        step()
    (gate_s,) = passed_s
    (first_s, ago_s), (last_s, _) = seen
    assert ago_s > 0
    assert first_s < gate_s < last_s, (first_s, gate_s, last_s)


def _train(num_steps: int) -> keras.Model:
    with STRATEGY.scope():
        layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(8)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(64, 64)).astype(np.float32), rng.normal(size=(64, 8)).astype(np.float32)
    model.fit(x, y, batch_size=64, epochs=num_steps, verbose=0)
    return model


def all_workers_decide_alike_from_what_all_have_measured():
    model = _train(3)
    assert STRATEGY.dual_sync is None  # the first step and three that are timed come before
    model.fit(np.ones((256, 64), np.float32), np.ones((256, 8), np.float32), batch_size=16, verbose=0)
    decided = STRATEGY.dual_sync
    assert decided is not None
    assert decided.policy == current().config.policy
    assert decided.nbytes >= sum(4 * np.prod(variable.shape) for variable in model.trainable_variables)
    step = decided.step
    for value in (
        [decided.num_to_devices, decided.num_buckets, decided.bytes_to_devices],
        [step.forward_s, step.backward_s, step.step_s, *step.ready_s],
        [seconds for way in (decided.ways.devices, decided.ways.workers) for _, seconds in way],
    ):
        assert_alike(np.array(value, np.float64))
    assert 0 <= step.backward_s < step.step_s
    assert 0 < step.forward_s < step.step_s
    assert len(step.ready_s) == decided.num_buckets
    assert_alike(numbers(model.trainable_variables[0].value))


def layers_states_travel_behind_the_gradients():
    """They are there in forward: in the first bucket they would end it before it has ended."""
    with STRATEGY.scope():
        layers = [keras.layers.Dense(96), keras.layers.BatchNormalization(), keras.layers.Dense(7)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    rng = np.random.default_rng(4)
    model.fit(rng.normal(size=(32, 5)), rng.normal(size=(32, 7)), batch_size=16, verbose=0)
    (shapes,) = (tensors.shapes for tensors in STRATEGY._rounds._sites if (5, 96) in tensors.shapes)
    assert shapes[:2] == ((96,), (96,))
    assert shapes[2:] == tuple(tuple(variable.shape) for variable in model.trainable_variables)
    for state in model.non_trainable_variables[:2]:
        assert_alike(state.value)
        assert numbers(state.value).any()


def pushes_are_counted_in_every_step_whoever_sums():
    model = _train(1)
    keys = coarse.statistics()["keys"]
    gradients = [name for name, key in keys.items() if "gradients" in name and key["bytes"] > 4096]
    before = sum(keys[name]["pushes"] for name in gradients)
    model.fit(np.ones((64, 64), np.float32), np.ones((64, 8), np.float32), batch_size=16, verbose=0)
    after = sum(coarse.statistics()["keys"][name]["pushes"] for name in gradients)
    assert after - before >= 4


CLAIMS = [
    all_workers_decide_alike_from_what_all_have_measured,
    forward_ends_with_the_first_gradient_rather_than_the_first_push,
    layers_states_travel_behind_the_gradients,
    pushes_are_counted_in_every_step_whoever_sums,
]
