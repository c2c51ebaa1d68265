"""What ranks would train on apart from is told: values that differ, and updates that nobody sums."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf

import coarse
from coarse.errors import ConfigError, MismatchError
from tests.mpi.tf.training import (
    compiled,
    dense,
    fit,
    mlp,
    require_same_everywhere,
    rows,
    strategy,
    trained_alike,
)
from tests.support.claims import in_test_all, raises
from tf_strategy import gradients

ADVICE = ("differ between ranks", "on every rank")


def eager(*between: keras.layers.Layer) -> keras.Model:
    """A model of the strategy that trains without tracing."""
    with strategy().scope():
        return compiled(mlp(*between), run_eagerly=True)


@contextmanager
def one_rank_has_more(*variables: keras.Variable) -> Iterator[None]:
    """Within, rank 0's values are larger by 1."""
    before = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value + (coarse.rank() == 0))
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


@contextmanager
def warned(*words: str) -> Iterator[None]:
    """Within, all ranks are warned once in all of these words; without words, of nothing that coarse says."""
    extended = strategy().extended
    gradients._warned.clear()
    extended.equal_starts._has_warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = [str(warning.message) for warning in caught]
    said = [text for text in said if text.startswith(f"rank {coarse.rank()}: ")]
    if strategy().num_replicas_in_sync > 1:
        assert len(said) == bool(words), said
        assert all(word in said[0] for word in words), said


# --- values that differ


def what_one_rank_sets_between_two_fits_is_named_to_all() -> None:
    model = eager()
    fit(model, 1)
    if strategy().num_replicas_in_sync == 1:
        return
    for variable, name in ((model.layers[0].kernel, "kernel"), (model.optimizer.learning_rate, "learning_rate")):
        with one_rank_has_more(variable), raises(MismatchError, f"rank {coarse.rank()}: ", name, *ADVICE):
            fit(model, 1)
    with one_rank_has_more(*model.weights), raises(MismatchError, "and 1 more"):
        fit(model, 1)
    fit(model, 1)
    require_same_everywhere(model.get_weights())


def frozen_layers_and_statistics_that_differ_are_named_before_the_first_step() -> None:
    if strategy().num_replicas_in_sync == 1:
        return
    with strategy().scope():
        statistics = keras.layers.Normalization()
        statistics.adapt(rows()[0][coarse.rank() :])
        frozen = dense(16, 3, trainable=False)
        model = compiled(keras.Sequential([keras.Input((16,)), frozen, statistics, dense(4, 4)]), run_eagerly=True)
    with raises(MismatchError, "mean", "variance", *ADVICE):
        fit(model, 1)
    statistics.mean, statistics.variance = None, None
    for kept in statistics.non_trainable_weights:
        kept.assign(tf.ones_like(kept))
    with one_rank_has_more(frozen.kernel), raises(MismatchError, "kernel", *ADVICE):
        fit(model, 1)
    with strategy().scope():
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    for differing in (frozen.kernel, model.layers[-1].kernel):
        ones = [tf.ones(variable.shape) for variable in model.trainable_variables]
        with one_rank_has_more(differing), raises(MismatchError, "kernel", *ADVICE):
            strategy().run(lambda ones=ones: optimizer.apply(ones))


def what_each_rank_may_have_of_its_own_is_not_compared() -> None:
    model = eager(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    with strategy().scope():
        counter = tf.Variable(0.0, trainable=False)
    fit(model, 1)
    strategy().run(lambda: counter.assign_add(float(coarse.rank())))
    if coarse.rank() == 0:
        model(rows()[0], training=True)  # draws from the generators of Dropout, and writes moving statistics
    fit(model, 1)
    with one_rank_has_more(model.layers[0].kernel):
        model.evaluate(*rows(), verbose=0)
        model.predict(rows()[0], verbose=0)
    fit(model, 1)


def a_model_that_is_gone_is_missed_by_no_function_that_was_traced_before() -> None:
    with strategy().scope():
        model, other = compiled(mlp()), mlp()
    fit(model, 1)
    del other
    gc.collect()
    fit(model, 1)


# --- updates that nobody sums


class Plain(keras.optimizers.SGD):
    """Writes variables by itself."""

    def apply(self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable]) -> None:
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(0.05 * gradient)


class Halved(keras.optimizers.SGD):
    """Changes gradients, and leaves the rest to Keras."""

    def apply(self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable]) -> None:
        super().apply([gradient / 2 for gradient in grads], trainable_variables)


@in_test_all
def optimizers_with_an_apply_of_their_own_train_as_in_one_process() -> None:
    for kind in (Plain, Halved):
        trained_alike(lambda kind=kind: compiled(mlp(), kind(0.05)), epochs=1)


def a_trainable_variable_that_replicas_write_alone_is_warned_of_and_not_compared() -> None:
    with strategy().scope():
        weight = tf.Variable([1.0], name="by_hand")

    def write() -> None:
        weight.assign_sub([float(coarse.rank())])

    with warned("'by_hand'", "all_reduce", "apply_gradients"):
        for way in (strategy().run, tf.function(strategy().run)):
            way(write)
    fit(eager(), 1)


@in_test_all
def what_layers_and_optimizers_write_is_not_warned_of() -> None:
    def build() -> keras.Model:
        spectral = keras.layers.SpectralNormalization(dense(8, 3, kernel_constraint="max_norm"))
        optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2, weight_decay=0.01)
        return compiled(mlp(keras.layers.Dropout(0.1), spectral, keras.layers.BatchNormalization()), optimizer)

    with strategy().scope():
        model, average = build(), mlp()
        optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(2)]  # built where they are first used
    weights = average.trainable_weights
    average.trainable = False

    def follow() -> None:
        for kept in weights:
            kept.assign(0.9 * kept)
        for optimizer in optimizers:
            optimizer.apply_gradients([(tf.ones(weight.shape), weight) for weight in weights])

    with warned():
        fit(model, 1)
        strategy().run(tf.function(follow))
        model.run_eagerly = True
        fit(model, 1)


# --- parts of a model that were made outside


def normalised() -> keras.Model:
    """A model with moving statistics and a generator, and nothing that is trained."""
    layers = [keras.layers.BatchNormalization(scale=False, center=False), keras.layers.Dropout(0.1)]
    return keras.Sequential([keras.Input((24,)), *layers])


def moving_statistics_made_outside_the_scope_are_warned_of() -> None:
    outside = normalised()
    with strategy().scope():
        model = compiled(mlp(outside), steps_per_execution=2)
    with warned("moving_mean", "moving_variance", "outside strategy.scope()"):
        fit(model, 2)


@in_test_all
def layers_outside_the_scope_that_write_nothing_are_not_warned_of() -> None:
    constant = keras.layers.Normalization(mean=0.5, variance=2.0)
    fixed = normalised()
    fixed.trainable = False
    with strategy().scope():
        model = compiled(mlp(constant, fixed, keras.layers.BatchNormalization()), metrics=["mae"])
    with warned():
        fit(model, 1)


def a_model_made_outside_whose_optimizer_was_made_within_is_told_so() -> None:
    model = mlp()
    with strategy().scope():
        compiled(model)
    with raises(ConfigError, "the model was made outside strategy.scope()", "both within"):
        fit(model, 1)


CLAIMS: list[Callable[[], None]] = [
    what_one_rank_sets_between_two_fits_is_named_to_all,
    frozen_layers_and_statistics_that_differ_are_named_before_the_first_step,
    what_each_rank_may_have_of_its_own_is_not_compared,
    a_model_that_is_gone_is_missed_by_no_function_that_was_traced_before,
    optimizers_with_an_apply_of_their_own_train_as_in_one_process,
    a_trainable_variable_that_replicas_write_alone_is_warned_of_and_not_compared,
    what_layers_and_optimizers_write_is_not_warned_of,
    moving_statistics_made_outside_the_scope_are_warned_of,
    layers_outside_the_scope_that_write_nothing_are_not_warned_of,
    a_model_made_outside_whose_optimizer_was_made_within_is_told_so,
]
