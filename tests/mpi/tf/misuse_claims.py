"""What misuse.py claims: each misuse is a typed error on every rank, in words that help."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.misuse import CONFIG, NO_DEVICES
from tf_strategy import CoarseStrategy, cause_of, failures


def rank() -> int:
    return coarse.rank()


def strategy() -> CoarseStrategy:
    return made[0]


made: list[CoarseStrategy] = []


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[list[Exception]]:
    """As claims.raises, however long TensorFlow takes to trace a function before."""
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"no {kind.__name__} was raised"
    missing = [word for word in words if word not in str(caught[0])]
    assert not missing, f"{caught[0]} does not say {missing}"


@contextmanager
def apart(*words: str) -> Iterator[None]:
    """A MismatchError that says where all ranks were; it is forgotten, which a user's program cannot do.

    All ranks refuse at their roll call, so that nothing of the other is under way.
    """
    with refused(coarse.MismatchError, f"rank {rank()}: at synchronisation", *words):
        yield
    failures._failure = None
    assert float(strategy().reduce("SUM", 1.0, axis=None)) == coarse.size()


def model_of(units: int = 3, **compiled: object) -> keras.Model:
    with strategy().scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse", **compiled)
    return model


def rows(count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((count, 4), np.float32), np.ones((count, 1), np.float32)


def all_reduce(function: Callable[[], object]) -> object:
    return strategy().run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", function()))


# --- the start


def a_job_without_memory_devices_is_refused() -> None:
    with refused(coarse.ConfigError, "no memory device"):
        CoarseStrategy(config=NO_DEVICES)


def a_strategy_within_the_scope_of_another_is_refused() -> None:
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        refused(coarse.ConfigError, "within the scope of a MirroredStrategy", "outside"),
    ):
        CoarseStrategy(CONFIG)
    assert not coarse.is_initialized()


def a_config_for_a_job_that_has_begun_with_another_is_refused() -> None:
    coarse.init(CONFIG)
    with refused(coarse.ConfigError, "coarse.init() was called before", "one of the two"):
        CoarseStrategy(CONFIG)
    made.append(CoarseStrategy())


def a_second_strategy_is_refused() -> None:
    for scope in (None, strategy().scope()):
        with refused(coarse.ConfigError, "has a CoarseStrategy already"):
            if scope is None:
                CoarseStrategy()
            else:
                with scope:
                    CoarseStrategy()


# --- variables and models that differ


def a_variable_of_another_shape_is_named_with_shapes_and_ranks() -> None:
    with apart("'kernel'", "float32[2, 3] on rank 0 but float32[2, 4] on rank 1", "one shape"), strategy().scope():
        tf.Variable(tf.zeros([2, 3 + rank()]), name="kernel")


def a_variable_of_another_type_is_named_with_types_and_ranks() -> None:
    with apart("'kernel'", "float32[2] on rank 0 but float64[2] on rank 1"), strategy().scope():
        tf.Variable(tf.zeros([2], (tf.float32, tf.float64)[rank()]), name="kernel")


def a_layer_of_another_width_is_named() -> None:
    with apart("the first value of", "kernel", "float32[4, 3] on rank 0 but float32[4, 4] on rank 1"):
        model_of(3 + rank())


def models_of_different_numbers_of_variables_are_told_apart() -> None:
    with apart("have come apart", "'more'", "float32[2]", "a sum (float32[11])", "on rank 0", "on rank 1", "layers"):
        with strategy().scope():
            for name in ("one", "more")[: rank() + 1]:
                tf.Variable(tf.zeros([2]), name=name)
        strategy().reduce("SUM", tf.zeros([11]), axis=None)


def gradients_of_different_models_are_told_apart() -> None:
    kinds = [tf.zeros([2]), tf.zeros([3]), tf.zeros([4]), tf.zeros([5 + rank()])]
    with apart("a sum, tensor 4 of 4,", "float32[5] on rank 0 but float32[6] on rank 1", "one shape"):
        all_reduce(lambda: kinds)
    two = "a sum (float32[2], float32[3])"
    with apart("have come apart", f"{two} on rank 0", f"{two[:-1]}, float32[4]) on rank 1", "other layers"):
        all_reduce(lambda: kinds[: 2 + rank()])


def gradients_that_differ_within_a_graph_are_told_apart() -> None:
    with apart("a sum", "float32[7] on rank 0 but float32[8] on rank 1"), strategy().scope():
        tf.function(lambda: all_reduce(lambda: tf.zeros([7 + rank()])))()


def gathered_rows_that_differ_are_told_apart() -> None:
    with apart("gathered rows", "int32[2] on rank 0 but int32[3] on rank 1"):
        strategy().gather(tf.zeros([1, 2 + rank()], tf.int32), axis=0)


# --- what cannot work


def jit_compile_is_refused_by_name() -> None:
    with refused(coarse.ConfigError, "jit_compile=True", "jit_compile=False", "one_step_on_data"):
        model_of(jit_compile=True).fit(*rows(), verbose=0)

    def step() -> object:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))

    def outer() -> object:
        return strategy().run(step)

    compiled = tf.function(outer, jit_compile=True)
    with refused(coarse.ConfigError, "outer has jit_compile=True"), strategy().scope():
        compiled()
    with refused(Exception, f"ConfigError: rank {rank()}: outer has jit_compile=True") as caught:
        compiled()
    assert type(cause_of(caught[0])) is coarse.ConfigError
    with refused(coarse.ConfigError, "has jit_compile=True"):
        strategy().run(tf.function(step, jit_compile=True))
    assert float(tf.function(outer)()) == coarse.size()


def an_error_of_the_users_stays_what_it_is() -> None:
    def broken() -> None:
        raise ArithmeticError("the step is broken")

    def step() -> tf.Tensor:
        return tf.py_function(broken, [], tf.float32)

    with refused(tf.errors.OpError, "the step is broken") as caught, strategy().scope():
        strategy().run(tf.function(step))
    assert cause_of(caught[0]) is None
    assert float(strategy().reduce("SUM", 1.0, axis=None)) == coarse.size()


# --- the end: nothing can be synchronised any more


def a_metric_that_one_rank_alone_reads_is_told_apart_wherever_it_is_noticed() -> None:
    model = model_of()
    with strategy().scope():
        metric = keras.metrics.Mean()
    metric.result()  # all ranks; then one alone
    model.fit(*rows(), verbose=0)
    words = ("have come apart", "on rank 0", "on rank 1", "read a metric")
    with refused(Exception, *words) as caught:
        if rank() == 0:
            metric.result()
        else:
            model.fit(*rows(), verbose=0)
    assert type(cause_of(caught[0])) is coarse.MismatchError


def every_later_synchronisation_raises_the_same_error_at_once() -> None:
    first = failures._failure
    assert isinstance(first, coarse.MismatchError)
    pushes = coarse.statistics()["keys"]["tensorflow/roll"]["pushes"]
    for again in (
        lambda: strategy().reduce("SUM", 1.0, axis=None),
        lambda: strategy().gather(tf.zeros([1]), axis=0),
        lambda: model_of(),
        lambda: all_reduce(lambda: tf.zeros([7])),
        lambda: tf.function(lambda: all_reduce(lambda: tf.zeros([7])))(),
    ):
        with refused(coarse.MismatchError) as caught, strategy().scope():
            again()
        assert caught[0] is first
    assert coarse.statistics()["keys"]["tensorflow/roll"]["pushes"] == pushes


CLAIMS = (
    a_job_without_memory_devices_is_refused,
    a_strategy_within_the_scope_of_another_is_refused,
    a_config_for_a_job_that_has_begun_with_another_is_refused,
    a_second_strategy_is_refused,
    a_variable_of_another_shape_is_named_with_shapes_and_ranks,
    a_variable_of_another_type_is_named_with_types_and_ranks,
    a_layer_of_another_width_is_named,
    models_of_different_numbers_of_variables_are_told_apart,
    gradients_of_different_models_are_told_apart,
    gradients_that_differ_within_a_graph_are_told_apart,
    gathered_rows_that_differ_are_told_apart,
    jit_compile_is_refused_by_name,
    an_error_of_the_users_stays_what_it_is,
    a_metric_that_one_rank_alone_reads_is_told_apart_wherever_it_is_noticed,
    every_later_synchronisation_raises_the_same_error_at_once,
)
