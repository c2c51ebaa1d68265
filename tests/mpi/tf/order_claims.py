"""Reductions follow one another alike on all ranks, whenever their inputs are ready: [Note: order] of operations."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import require_close, strategy

Tensor = tf.Tensor
NUM = 6


def total(value: Tensor) -> Tensor:
    """The sum over all workers."""
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def late_on(rank: int, value: Tensor) -> Tensor:
    """The same values, which come late on one rank."""

    def passed(array: np.ndarray) -> np.ndarray:
        if coarse.rank() == rank % strategy().num_replicas_in_sync:
            np.linalg.eigvals(np.random.default_rng(0).normal(size=(120, 120)))
        return array

    late = tf.numpy_function(passed, [value], value.dtype, stateful=False)
    late.set_shape(value.shape)
    return late


def wanted(values: Callable[[int], np.ndarray]) -> np.ndarray:
    """The sum of what each rank has."""
    return sum(values(rank) for rank in range(strategy().num_replicas_in_sync))


def run(function: Callable[..., object], *arguments: object) -> object:
    """The results of a function that is traced once for each worker."""
    return tf.function(lambda *given: strategy().run(function, given))(*arguments)


def mine(rank: int | None = None) -> np.ndarray:
    """(4,) float32 that differ between ranks."""
    return np.arange(4, dtype="f4") + 10 * (coarse.rank() if rank is None else rank)


def reductions_of_late_inputs_are_not_mixed_up() -> None:
    def several(x: Tensor) -> list[Tensor]:
        return [total(late_on(number, x * 10.0**number)) for number in range(NUM)]

    for _ in range(3):
        found = run(several, mine())
        require_close(found, [wanted(lambda rank: mine(rank) * 10.0**number) for number in range(NUM)])  # noqa: B023


def reductions_of_unlike_shapes_are_not_mixed_up() -> None:
    def several(x: Tensor) -> list[Tensor]:
        return [total(tf.repeat(late_on(number, x), number + 1)) for number in range(NUM)]

    require_close(run(several, mine()), [np.repeat(wanted(mine), number + 1) for number in range(NUM)])


def reductions_in_a_loop_follow_one_another() -> None:
    def looped(x: Tensor) -> tuple[Tensor, Tensor]:
        found = tf.TensorArray(tf.float32, NUM, element_shape=(4,))

        def body(step: Tensor, found: tf.TensorArray) -> tuple[Tensor, tf.TensorArray]:
            one = late_on(0, x + tf.cast(step, tf.float32))
            return step + 1, found.write(step, total(one) + 0 * total(late_on(1, 3 * x)))

        _, found = tf.while_loop(lambda step, _: step < NUM, body, (0, found), parallel_iterations=10)
        return found.stack(), total(x)

    (found, last) = run(looped, mine())
    require_close(list(found), [wanted(lambda rank: mine(rank) + step) for step in range(NUM)])  # noqa: B023
    require_close([last], [wanted(mine)])


def reductions_in_a_loop_may_depend_on_the_last() -> None:
    def looped(x: Tensor) -> Tensor:
        size = tf.cast(strategy().num_replicas_in_sync, tf.float32)

        def body(step: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return step + 1, total(late_on(1, x)) / size

        return tf.while_loop(lambda step, _: step < NUM, body, (0, x))[1]

    require_close([run(looped, mine())], [wanted(mine) / strategy().num_replicas_in_sync])


def reductions_in_branches_follow_one_another() -> None:
    def branched(x: Tensor, goes_left: Tensor) -> tuple[Tensor, Tensor]:
        left = tf.cond(goes_left, lambda: total(late_on(0, x)), lambda: total(late_on(1, 2 * x)) + 0 * total(x))
        return left, total(3 * x)

    traced = tf.function(lambda x, left: strategy().run(branched, (x, left)))
    for goes_left in (True, False, True):
        found = traced(mine(), tf.constant(goes_left))
        require_close(found, [(1 if goes_left else 2) * wanted(mine), 3 * wanted(mine)])


def reductions_in_nested_functions_follow_one_another() -> None:
    @tf.function
    def inner(x: Tensor) -> Tensor:
        return total(late_on(1, x))

    @tf.function
    def middle(x: Tensor) -> Tensor:
        return inner(late_on(0, x)) + 0 * total(5 * x)

    def outer(x: Tensor) -> list[Tensor]:
        return [inner(x), middle(2 * x), total(late_on(0, 3 * x)), middle(4 * x), inner(5 * x)]

    require_close(run(outer, mine()), [factor * wanted(mine) for factor in range(1, 6)])


def runs_within_one_function_follow_one_another() -> None:
    @tf.function
    def several(x: Tensor) -> list[Tensor]:
        one = strategy().run(lambda: total(late_on(0, x)))
        two = strategy().reduce("SUM", strategy().run(lambda: late_on(1, 2 * x)), axis=None)
        return [one, two, strategy().run(lambda: total(3 * x))]

    require_close(several(mine()), [factor * wanted(mine) for factor in range(1, 4)])


def sums_and_gatherings_follow_one_another() -> None:
    def several(x: Tensor) -> list[Tensor]:
        context = tf.distribute.get_replica_context()
        gathered = context.all_gather(late_on(0, x), axis=0)
        summed = total(late_on(1, x))
        unknown = total(tf.boolean_mask(late_on(0, x), [True, False, True, True]))
        return [gathered, summed, unknown, context.all_gather(x[:2], axis=0)]

    size = strategy().num_replicas_in_sync
    all_rows = np.concatenate([mine(rank) for rank in range(size)])
    first_rows = np.concatenate([mine(rank)[:2] for rank in range(size)])
    require_close(run(several, mine()), [all_rows, wanted(mine), wanted(mine)[[0, 2, 3]], first_rows])


CLAIMS = [
    reductions_of_late_inputs_are_not_mixed_up,
    reductions_of_unlike_shapes_are_not_mixed_up,
    reductions_in_a_loop_follow_one_another,
    reductions_in_a_loop_may_depend_on_the_last,
    reductions_in_branches_follow_one_another,
    reductions_in_nested_functions_follow_one_another,
    runs_within_one_function_follow_one_another,
    sums_and_gatherings_follow_one_another,
]
