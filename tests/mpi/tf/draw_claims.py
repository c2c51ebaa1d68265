"""Which random numbers workers draw apart, as MirroredStrategy's replicas do, and which alike."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import (
    BATCH,
    compiled,
    everywhere,
    fit,
    mlp,
    require_same_everywhere,
    rows,
    strategy,
)
from tests.support.claims import in_test_all

Draw = Callable[[], tf.Tensor]
SEED = 7
ALIKE = {"seed generator", "layer", "seed of its own", "stateless"}
"""Of the ways to draw those in which all replicas of MirroredStrategy draw the same too."""
WITHIN = {"function within", "branch within"}
"""By these replicas of MirroredStrategy draw the same where they share a trace, or where its graphs count alike."""


def draws(on: tf.distribute.Strategy) -> dict[str, Draw]:
    """Ways to draw in a replica, by name; their generators are made for a strategy, and some outside of its scope."""
    keras.utils.set_random_seed(SEED)
    outside, outer_seeds = tf.random.Generator.from_seed(3), keras.random.SeedGenerator(4)
    nested = tf.function(lambda: tf.random.normal([8]))
    with on.scope():
        inside, inner_seeds = tf.random.Generator.from_seed(3), keras.random.SeedGenerator(4)
        dropout = keras.layers.Dropout(0.5)
        dropout.build([1, 32])
    return {
        "normal": lambda: tf.random.normal([8]),
        "uniform": lambda: tf.random.uniform([8]),
        "shuffle": lambda: tf.random.shuffle(tf.range(32)),
        "gamma": lambda: tf.random.gamma([8], 1.0),
        "categorical": lambda: tf.random.categorical(tf.zeros([1, 9]), 32),
        "dropout of TensorFlow": lambda: tf.nn.dropout(tf.ones([32]), 0.5),
        "candidates": lambda: tf.random.log_uniform_candidate_sampler([[1]], 1, 8, True, 10000)[0],
        "image": lambda: tf.image.random_brightness(tf.ones([2, 2, 3]), 0.5),
        "function within": lambda: nested(),
        "branch within": lambda: tf.cond(tf.constant(True), lambda: tf.random.normal([8]), lambda: tf.zeros([8])),
        "generator made outside": lambda: outside.normal([8]),
        "generator": lambda: inside.normal([8]),
        "seeds of a generator": lambda: inside.make_seeds(4),
        "seed generator made outside": lambda: keras.random.normal([8], seed=outer_seeds),
        "seed generator": lambda: keras.random.normal([8], seed=inner_seeds),
        "layer": lambda: dropout(tf.ones([1, 32]), training=True),
        "seed of its own": lambda: tf.random.normal([8], seed=5),
        "stateless": lambda: tf.random.stateless_normal([8], [1, 2]),
    }


def found_by(on: tf.distribute.Strategy, *, in_function: bool) -> dict[str, list[list[np.ndarray]]]:
    """By way to draw what every local replica has drawn, in three runs."""
    found = {}
    for name, draw in draws(on).items():
        run = tf.function(on.run) if in_function else on.run
        found[name] = [[np.asarray(one) for one in on.experimental_local_results(run(draw))] for _ in range(3)]
    return found


def are_alike(runs: list[list[np.ndarray]]) -> bool:
    """Whether all replicas have drawn the same in all runs; AssertionError where they have in some."""
    alike = [all(np.array_equal(one, other) for one in others) for other, *others in runs]
    assert len(set(alike)) == 1
    return alike[0]


@in_test_all
def workers_draw_apart_where_replicas_of_mirrored_strategy_do() -> None:
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for in_function in (False, True):
        theirs, ours = (found_by(one, in_function=in_function) for one in (mirrored, strategy()))
        for name, runs in ours.items():
            of_ranks = [[np.frombuffer(bits) for bits in everywhere(one.astype("f8"))] for (one,) in runs]
            assert are_alike(of_ranks) == (name in ALIKE), (name, in_function)
            assert are_alike(theirs[name]) == (name in ALIKE) or name in WITHIN, (name, in_function)
            assert np.array_equal(runs[0], runs[1]) == (name == "stateless"), name


@in_test_all
def the_same_seed_draws_the_same_again() -> None:
    for in_function in (False, True):
        first, again = (found_by(strategy(), in_function=in_function) for _ in range(2))
        for name, runs in first.items():
            assert np.array_equal(runs, again[name]), name


def rank_0_draws_what_one_process_draws() -> None:
    ours, alone = (found_by(one, in_function=True) for one in (strategy(), tf.distribute.get_strategy()))
    for name in ("normal", "image", "function within", "generator made outside", "seed generator made outside"):
        assert np.array_equal(ours[name], alone[name]) == strategy().is_chief, name


def what_must_be_equal_is_drawn_alike() -> None:
    keras.utils.set_random_seed(SEED)
    made: list[tf.Variable] = []

    def step() -> tf.Tensor:
        if not made:
            made.append(tf.Variable(tf.random.normal([8])))
        return tf.distribute.get_replica_context().merge_call(lambda _: tf.random.normal([8]))

    with strategy().scope():
        drawn = [strategy().run(step), tf.function(strategy().run)(step)]
        later = keras.layers.Dense(3)
        strategy().run(lambda: later(tf.random.normal([2, 4])))
    given = tf.data.Dataset.range(64).shuffle(64).map(lambda number: (number, tf.random.uniform([])))
    shuffled = [part.numpy() for row in given for part in row]
    require_same_everywhere([made[0].numpy(), *drawn, *later.get_weights(), shuffled, tf.random.normal([8])])


class Langevin(keras.optimizers.SGD):
    """Adds noise to gradients, and to what it writes."""

    def apply(self, grads: list[tf.Tensor], trainable_variables: object = None) -> None:
        noisy = [grad + tf.random.normal(grad.shape) + self.numbers.normal(grad.shape) for grad in grads]
        super().apply(noisy, trainable_variables)

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        super().update_step(gradient + 0.1 * tf.random.normal(tf.shape(gradient)), variable, learning_rate)


@in_test_all
def an_optimizer_that_draws_keeps_weights_equal() -> None:
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(SEED)
        with strategy().scope():
            optimizer = Langevin(0.01)
            optimizer.numbers = tf.random.Generator.from_seed(3)
            model = compiled(mlp(), optimizer, run_eagerly=run_eagerly)
        first = model.get_weights()
        fit(model, 1)
        require_same_everywhere(model.get_weights())
        assert not np.array_equal(first[0], model.get_weights()[0])


class Noisy(keras.Model):
    """Keeps the noise that each of its steps has drawn."""

    def __init__(self, inner: keras.Model, steps: int) -> None:
        super().__init__()
        self.inner = inner
        self.drawn = self.add_weight(shape=(steps, 4), initializer="zeros", trainable=False, dtype="int64")
        self.at = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, object]:
        noise = tf.random.normal([4])
        numbers = tf.cast(noise * 2.0**20, tf.int64)  # floating, it would be rank 0's on all ranks
        self.drawn.assign(tf.tensor_scatter_nd_update(self.drawn.value, [[self.at.value]], [numbers]))
        self.at.assign(self.at.value + 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0]) + noise - data[1]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def a_fit_whose_steps_draw_noise_sees_each_once() -> None:
    x, y = rows(4 * BATCH)
    histories = []
    for _ in range(2):
        keras.utils.set_random_seed(SEED)
        with strategy().scope():
            model = Noisy(mlp(), 4)
            model.compile(keras.optimizers.SGD(0.01))
        noise: list[np.ndarray] = []
        keep = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: noise.extend(_own(model.drawn))  # noqa: B023
        )
        histories.append(fit(model, 1, x=x, y=y, callbacks=[keep])["loss"])
        seen = np.concatenate([np.frombuffer(bits, np.int64) for bits in everywhere(noise)])
        assert len(set(seen)) == len(seen) == 4 * 4 * coarse.size()
        require_same_everywhere(model.trainable_variables)
    assert histories[0] == histories[1]


def _own(variable: keras.Variable) -> np.ndarray:
    """This worker's value."""
    (own,) = strategy().experimental_local_results(variable.value)
    return own.numpy()


CLAIMS = [
    workers_draw_apart_where_replicas_of_mirrored_strategy_do,
    the_same_seed_draws_the_same_again,
    rank_0_draws_what_one_process_draws,
    what_must_be_equal_is_drawn_alike,
    an_optimizer_that_draws_keeps_weights_equal,
    a_fit_whose_steps_draw_noise_sees_each_once,
]
