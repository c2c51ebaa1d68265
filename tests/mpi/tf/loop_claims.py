"""What loops of one's own promise: strategy.run, reductions of values of every kind, gradients through them."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.errors import ConfigError, MismatchError
from tests.mpi.tf.training import (
    BATCH,
    STEPS,
    BehindWeights,
    compiled,
    dense,
    fit,
    mlp,
    pushed,
    require_close,
    require_same_everywhere,
    rows,
    strategy,
)
from tests.support.claims import in_test_all, raises

Tensor = tf.Tensor


def mine(batch: np.ndarray) -> np.ndarray:
    """This rank's rows of a global batch."""
    return np.array_split(batch, strategy().num_replicas_in_sync)[coarse.rank()]


def batches(num: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Global batches."""
    x, y = rows(BATCH * num)
    return list(zip(np.split(x, num), np.split(y, num), strict=True))


def context() -> tf.distribute.ReplicaContext:
    """Where a function of strategy.run is."""
    return tf.distribute.get_replica_context()


def in_both_ways(function: Callable[..., object]) -> tuple[Callable[..., object], ...]:
    """A function run by the strategy: eagerly, and traced."""

    def run(*arguments: object) -> object:
        return strategy().run(function, arguments)

    return run, tf.function(run)


def variables_of(*models: keras.Model) -> list[np.ndarray]:
    """The values of all weights."""
    return [weights for model in models for weights in model.get_weights()]


# --- training


def step_of(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """One step on a part of a global batch; it returns the losses of the part's rows."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(model(x, training=True) - y), axis=1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return losses

    return step


def adam() -> keras.optimizers.Optimizer:
    """An optimizer that clips."""
    return keras.optimizers.Adam(0.01, global_clipnorm=0.2)


def trains(way: int, make: Callable[[], keras.optimizers.Optimizer] = adam) -> None:
    """A loop over global batches equals one process's, in weights and in the losses that are reduced."""
    with strategy().scope():
        ours, optimizer = mlp(), make()
    alone, reference = mlp(), make()
    step, alone_step = step_of(ours, optimizer), step_of(alone, reference)
    distributed = in_both_ways(step)[way]
    with pushed(STEPS, ours.trainable_variables):
        for x, y in batches():
            losses, wanted = distributed(mine(x), mine(y)), alone_step(tf.constant(x), tf.constant(y))
            mean = strategy().reduce("MEAN", losses, axis=0)
            total = strategy().reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            require_same_everywhere([mean, total])
            by_rank = np.asarray(wanted).reshape(strategy().num_replicas_in_sync, -1)
            require_close([mean, total], [by_rank.mean(), by_rank.sum(0)])
    require_same_everywhere(variables_of(ours))
    require_close(variables_of(ours), variables_of(alone))


@in_test_all
def a_loop_in_a_function_trains_as_in_one_process() -> None:
    trains(1)


@in_test_all
def copies_of_weights_begin_as_the_weights_do_in_a_function() -> None:
    """Where the first step is traced, the optimizer makes its variables, and copies weights that the step changes."""
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # the oldest Keras supported has none
        trains(1, lambda: keras.optimizers.ScheduleFreeAdamW(0.01))
    trains(1, lambda: BehindWeights(0.05))


def an_eager_loop_trains_as_in_one_process() -> None:
    trains(0)


def a_loop_within_a_function_trains_as_in_one_process() -> None:
    with strategy().scope():
        ours, optimizer = mlp(), keras.optimizers.SGD(0.1)
        optimizer.build(ours.trainable_variables)
    alone, reference = mlp(), keras.optimizers.SGD(0.1)
    step, alone_step = step_of(ours, optimizer), step_of(alone, reference)
    x, y = (np.stack(part) for part in zip(*batches(), strict=True))

    @tf.function
    def epoch(x: Tensor, y: Tensor) -> Tensor:
        total = tf.constant(0.0)
        for number in tf.range(STEPS):
            losses = strategy().run(step, (x[number], y[number]))
            total += strategy().reduce("SUM", losses, axis=0)
        return total

    with pushed(STEPS, ours.trainable_variables):
        total = epoch(np.stack([mine(part) for part in x]), np.stack([mine(part) for part in y]))
    wanted = sum(float(tf.reduce_sum(alone_step(tf.constant(a), tf.constant(b)))) for a, b in batches())
    require_close([total], [wanted])
    require_same_everywhere(variables_of(ours))
    require_close(variables_of(ours), variables_of(alone))


class Adversaries:
    """Two models of equal shapes, each with an optimizer, trained in one step."""

    def __init__(self) -> None:
        self.maker = keras.Sequential([keras.layers.Input((16,)), dense(16, 1, activation="tanh"), dense(16, 2)])
        self.judge = keras.Sequential([keras.layers.Input((16,)), dense(16, 3, activation="tanh"), dense(16, 4)])
        self.optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)

    def step(self, x: Tensor, share: float) -> None:
        """One step of both, on rows that are `share` of the global batch."""
        with tf.GradientTape(persistent=True) as tape:
            made = self.judge(self.maker(x))
            of_maker = tf.reduce_mean(tf.square(made)) * share
            of_judge = tf.reduce_mean(tf.square(self.judge(x) - 1) - 0.1 * made) * share
        for model, optimizer, loss in zip(
            (self.maker, self.judge), self.optimizers, (of_maker, of_judge), strict=True
        ):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@in_test_all
def two_models_of_equal_shapes_train_in_one_step() -> None:
    with strategy().scope():
        ours = Adversaries()
    alone = Adversaries()
    share = 1 / strategy().num_replicas_in_sync
    _, step = in_both_ways(ours.step)
    with pushed(2 * STEPS, ours.maker.trainable_variables):
        for x, _ in batches():
            step(mine(x), share)
            alone.step(tf.constant(x), 1.0)
    require_same_everywhere(variables_of(ours.maker, ours.judge))
    require_close(variables_of(ours.maker, ours.judge), variables_of(alone.maker, alone.judge))


def gradients_applied_outside_run_are_refused() -> None:
    with strategy().scope():
        model = mlp()
        optimizers = keras.optimizers.SGD(0.1), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    before = variables_of(model)
    for optimizer in optimizers:
        pairs = [(tf.ones(variable.shape), variable) for variable in model.trainable_variables]
        with raises(ConfigError, "strategy.run"):
            optimizer.apply_gradients(pairs)
        with raises(ConfigError, "strategy.run"), strategy().scope():
            optimizer.apply_gradients(pairs)
    require_close(variables_of(model), before, rtol=0)


def ranks_that_begin_with_different_weights_all_hear_which() -> None:
    if strategy().num_replicas_in_sync == 1:
        return
    with strategy().scope():
        model, optimizer = compiled(mlp()), keras.optimizers.SGD(0.1)
    first, *others = model.get_weights()
    model.set_weights([first + coarse.rank(), *others])
    x, y = batches()[0]
    with raises(MismatchError, "dense", "kernel", "differ between ranks", "on every rank"):
        strategy().run(step_of(model, optimizer), (mine(x), mine(y)))
    with raises(MismatchError, "dense", "kernel", "differ between ranks", "on every rank"):
        fit(model, 1)


def variables_with_an_aggregation_are_combined_on_writing() -> None:
    with strategy().scope():
        total, mean = (
            tf.Variable(tf.zeros(3), trainable=False, aggregation=how)
            for how in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
        )

    def write(value: Tensor) -> None:
        total.assign_add(value)
        mean.assign(value)

    size = strategy().num_replicas_in_sync
    for run in in_both_ways(write):
        run(tf.fill([3], float(coarse.rank() + 1)))
    sums = size * (size + 1) / 2
    require_close([total, mean], [np.full(3, 2 * sums), np.full(3, sums / size)])


# --- reductions


def values_of_every_kind_are_summed() -> None:
    def summed(rank: Tensor) -> dict[str, object]:
        values = {
            "float": tf.cast(rank, tf.float32),
            "double": tf.cast(rank, tf.float64)[None],
            "int": (rank + 1, tf.cast(rank, tf.int64) + 2**40),
            "empty": tf.zeros((0, 3)),
        }
        return context().all_reduce("SUM", values)

    size = strategy().num_replicas_in_sync
    ranks = sum(range(size))
    for run in in_both_ways(summed):
        found = run(tf.constant(coarse.rank()))
        assert float(found["float"]) == float(found["double"][0]) == ranks
        assert [int(number) for number in found["int"]] == [ranks + size, ranks + size * 2**40]
        assert found["empty"].shape == (0, 3)


def values_are_reduced_along_an_axis() -> None:
    size, rank = strategy().num_replicas_in_sync, coarse.rank()
    parts = [np.arange(3 * (other + 1), dtype="f4") + other for other in range(size)]  # of unlike lengths
    whole = np.concatenate(parts)

    def reduced(value: Tensor) -> list[Tensor]:
        return [strategy().reduce(op, value, axis=0) for op in ("SUM", "MEAN")]

    for function in (reduced, tf.function(reduced)):
        require_close(function(tf.constant(parts[rank])), [whole.sum(), whole.mean()])


def values_are_gathered_along_any_axis() -> None:
    size, rank = strategy().num_replicas_in_sync, coarse.rank()
    for axis in (0, 1):
        parts = [np.full([other + 1 if n == axis else 2 for n in range(2)], other, "f4") for other in range(size)]
        found = strategy().gather(tf.constant(parts[rank]), axis=axis)
        require_close([found], [np.concatenate(parts, axis)], rtol=0)
        for run in in_both_ways(lambda value: context().all_gather(value, axis=axis)):  # noqa: B023
            require_close([run(tf.constant(parts[rank]))], [np.concatenate(parts, axis)], rtol=0)


def gradients_go_through_sums_and_gatherings() -> None:
    size, rank = strategy().num_replicas_in_sync, coarse.rank()
    everything = np.arange(3.0 * size, dtype="f4").reshape(size, 3) + 1

    def through(x: Tensor) -> tuple[Tensor, Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            of_sum = tf.reduce_sum(tf.square(context().all_reduce("SUM", x)))
            of_all = tf.reduce_sum(context().all_gather(x, axis=0) ** 3)
        return tape.gradient(of_sum, x), tape.gradient(of_all, x)

    for run in in_both_ways(through):
        of_sum, of_all = run(tf.constant(everything[rank]))
        require_close([of_sum], [2 * size * everything.sum(0)])  # each rank's loss is a function of the sum
        require_close([of_all], [3 * size * everything[rank] ** 2])


CLAIMS = [
    a_loop_in_a_function_trains_as_in_one_process,
    copies_of_weights_begin_as_the_weights_do_in_a_function,
    an_eager_loop_trains_as_in_one_process,
    a_loop_within_a_function_trains_as_in_one_process,
    two_models_of_equal_shapes_train_in_one_step,
    gradients_applied_outside_run_are_refused,
    ranks_that_begin_with_different_weights_all_hear_which,
    variables_with_an_aggregation_are_combined_on_writing,
    values_of_every_kind_are_summed,
    values_are_reduced_along_an_axis,
    values_are_gathered_along_any_axis,
    gradients_go_through_sums_and_gatherings,
]
