"""What model.fit and evaluate promise with Keras' optimizers, against one process on the global batch."""

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.training import (
    BATCH,
    STEPS,
    BehindWeights,
    buckets_of,
    compiled,
    dense,
    fit,
    mlp,
    num_pushes,
    pushed,
    require_equal,
    require_same_history,
    require_same_model_everywhere,
    rows,
    strategy,
    trained_alike,
    twins,
)
from tests.support.claims import in_test_all


@in_test_all
def sgd_with_momentum_trains_as_in_one_process() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)))


@in_test_all
def adam_trains_as_in_one_process() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.Adam(0.01)))


def copies_of_weights_begin_as_the_weights_do() -> None:
    """Keras' `fit` without a strategy or `run_eagerly` builds such optimizers while it traces, and differs."""
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # the oldest Keras supported has none
        trained_alike(lambda: compiled(mlp(), keras.optimizers.ScheduleFreeAdamW(0.01)))
    trained_alike(lambda: compiled(mlp(), BehindWeights(0.05)))


@in_test_all
def adamw_with_decay_and_clipped_norms_trains_as_in_one_process() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.05)))


def a_global_norm_is_clipped_after_the_sum() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.SGD(0.1, global_clipnorm=0.1)))


@in_test_all
def values_are_clipped_after_the_sum() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.SGD(0.1, clipvalue=0.01)))


@in_test_all
def moving_averages_of_weights_are_those_of_one_process() -> None:
    settings = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}
    trained_alike(lambda: compiled(mlp(), keras.optimizers.SGD(0.1, **settings)))


def accumulated_gradients_train_as_in_one_process() -> None:
    settings = {"gradient_accumulation_steps": 2, "global_clipnorm": 0.1}
    trained_alike(lambda: compiled(mlp(), keras.optimizers.Adam(0.01, **settings)))


def evaluate_is_that_of_one_process_on_every_rank() -> None:
    ours, alone = twins(lambda: compiled(mlp(), metrics=["mae", keras.metrics.CosineSimilarity()]))
    x, y = rows(75, seed=5)
    for weights in (None, np.linspace(0, 1, 75, dtype="f4")):
        given = {"batch_size": BATCH, "verbose": 0, "return_dict": True, "sample_weight": weights}
        found, wanted = ours.evaluate(x, y, **given), alone.evaluate(x, y, **given)
        require_same_history(found, wanted)


@in_test_all
def validation_data_and_sample_weights_count_alike() -> None:
    held_back = rows(32, seed=9)
    weights = np.linspace(0.5, 1.5, BATCH * STEPS, dtype="f4")
    trained_alike(lambda: compiled(mlp()), validation_data=held_back, sample_weight=weights)


def several_steps_in_one_call_are_the_same_steps() -> None:
    trained_alike(lambda: compiled(mlp(), steps_per_execution=4))


@in_test_all
def eager_training_is_the_same() -> None:
    trained_alike(lambda: compiled(mlp(), keras.optimizers.AdamW(0.01, clipnorm=0.1), run_eagerly=True))


@in_test_all
def a_model_of_one_scalar_trains() -> None:
    class Scale(keras.layers.Layer):
        def build(self, shape: object) -> None:
            self.factor = self.add_weight(shape=(), initializer="ones")

        def call(self, rows: tf.Tensor) -> tf.Tensor:
            return rows * self.factor

    x, _ = rows()
    ours, alone = twins(lambda: compiled(keras.Sequential([keras.layers.Input((16,)), Scale()]), metrics=[]))
    keys = buckets_of([()])
    before = num_pushes(keys)
    found, wanted = fit(ours, y=2 * x), fit(alone, y=2 * x)
    assert num_pushes(keys) - before >= 2 * STEPS
    require_equal(ours, alone)
    require_same_history(found, wanted)


def large_tensors_need_several_buckets() -> None:
    ours = trained_alike(lambda: compiled(mlp(dense(600, 3), dense(500, 4))))
    assert len(buckets_of([tuple(variable.shape) for variable in ours.trainable_variables])) > 1


def frozen_layers_are_left_out() -> None:
    def build() -> keras.Model:
        model = mlp(dense(24, 3))
        model.layers[0].trainable = False
        return compiled(model)

    ours = trained_alike(build)
    assert len(ours.trainable_variables) == 4


def a_layer_without_gradient_stays_as_it_is() -> None:
    class WithUnused(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = mlp(), dense(5, 7)
            self.unused.build((None, 16))

        def call(self, rows: tf.Tensor) -> tf.Tensor:
            return self.used(rows)

    ours, alone = twins(lambda: compiled(WithUnused()))
    assert len(ours.trainable_variables) == 6
    with pushed(2 * STEPS, ours.trainable_variables[:4]):
        fit(ours)
    fit(alone)
    require_equal(ours, alone)


@in_test_all
def a_layer_without_any_element_trains() -> None:
    class Empty(keras.layers.Layer):
        def build(self, shape: object) -> None:
            self.nothing = self.add_weight(shape=(0, 3))

        def call(self, rows: tf.Tensor) -> tf.Tensor:
            return rows + tf.reduce_sum(self.nothing)

    trained_alike(lambda: compiled(mlp(Empty())))


@in_test_all
def dropout_leaves_ranks_equal() -> None:
    ours, _ = twins(lambda: compiled(mlp(keras.layers.Dropout(0.5, seed=3))))
    with pushed(2 * STEPS, ours.trainable_variables):
        found = fit(ours)
    require_same_model_everywhere(ours)
    assert np.isfinite(found["loss"]).all()


def a_step_is_traced_once() -> None:
    traces = []

    class Counted(keras.layers.Layer):
        def call(self, rows: tf.Tensor) -> tf.Tensor:
            if not tf.executing_eagerly():
                traces.append(1)
            return rows

    with strategy().scope():
        model = compiled(mlp(Counted()))
    fit(model, 1)
    once = len(traces)
    fit(model, 3)
    assert len(traces) == once, f"{len(traces) - once} more traces"


@in_test_all
def an_optimizer_made_outside_the_scope_trains_alike() -> None:
    optimizer = keras.optimizers.SGD(0.05)
    with strategy().scope():
        ours = compiled(mlp(), optimizer)
    alone = compiled(mlp(), keras.optimizers.SGD(0.05))
    with pushed(STEPS, ours.trainable_variables):
        fit(ours, 1)
    fit(alone, 1)
    require_equal(ours, alone)


@in_test_all
def several_outputs_count_alike() -> None:
    def build() -> keras.Model:
        inputs = keras.Input((16,))
        hidden = dense(24, 1, activation="relu")(inputs)
        model = keras.Model(inputs, {"a": dense(4, 2)(hidden), "b": dense(2, 3)(hidden)})
        model.compile(keras.optimizers.SGD(0.05), loss={"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.3})
        return model

    _, y = rows()
    ours, alone = twins(build)
    with pushed(2 * STEPS, ours.trainable_variables):
        found = fit(ours, y={"a": y, "b": y[:, :2]})
    wanted = fit(alone, y={"a": y, "b": y[:, :2]})
    require_equal(ours, alone)
    require_same_history(found, wanted)


CLAIMS = [
    sgd_with_momentum_trains_as_in_one_process,
    adam_trains_as_in_one_process,
    copies_of_weights_begin_as_the_weights_do,
    adamw_with_decay_and_clipped_norms_trains_as_in_one_process,
    a_global_norm_is_clipped_after_the_sum,
    values_are_clipped_after_the_sum,
    moving_averages_of_weights_are_those_of_one_process,
    accumulated_gradients_train_as_in_one_process,
    evaluate_is_that_of_one_process_on_every_rank,
    validation_data_and_sample_weights_count_alike,
    several_steps_in_one_call_are_the_same_steps,
    eager_training_is_the_same,
    a_model_of_one_scalar_trains,
    large_tensors_need_several_buckets,
    frozen_layers_are_left_out,
    a_layer_without_gradient_stays_as_it_is,
    a_layer_without_any_element_trains,
    dropout_leaves_ranks_equal,
    a_step_is_traced_once,
    an_optimizer_made_outside_the_scope_trains_alike,
    several_outputs_count_alike,
]
