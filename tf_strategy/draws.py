"""Random numbers of replicas: different on each worker, from one seed, as under MirroredStrategy.

[Note: drawn apart] Workers run one program from one seed, so that a step would draw the same noise on all of them. The
worker's rank therefore goes into the seed of each operation that draws in `strategy.run`; rank 0 draws as one process
does. All draws elsewhere are equal: first values, the order of data, `merge_call`, and an optimizer's draws from summed
gradients, since all that it writes is equal. Also equal, as in all replicas of MirroredStrategy, are draws from a seed
that the program gives to the operation, and from a Keras SeedGenerator made within the scope.
"""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_strategy.extended import CoarseExtended, CoarseReplicaContext
from tf_strategy.private_names import Generator, is_strategy_variable, random_seed
from tf_strategy.sums.places import fingerprint_of

_MARK = "draws_apart"
_SEEDS = 2**31 - 1
"""Exclusive upper bound of operation seeds."""


def draw_apart() -> None:
    """Let replicas of a CoarseStrategy draw different numbers from now on; other draws stay unchanged."""
    for owner, name, made in (
        (random_seed, "get_seed", _seeds_apart),
        (Generator, "_preprocess_key", _keys_apart),
        (keras.random.SeedGenerator, "next", _states_apart),
    ):
        if not hasattr(getattr(owner, name), _MARK):
            drawn = getattr(owner, name)
            apart = functools.wraps(drawn)(made(drawn))
            setattr(apart, _MARK, True)
            setattr(owner, name, apart)


def seeds_of(seeds: tuple[int, int], worker: int) -> tuple[int, int]:
    """Return the two seeds of an operation on a worker; rank 0 keeps those of one process."""
    if worker == 0:
        return seeds
    number = fingerprint_of(repr((seeds, worker)).encode())
    return 1 + number % (_SEEDS - 1), (number // _SEEDS) % _SEEDS  # not (0, 0), which no seed determines


def _worker() -> int:
    """Return the rank if its replica draws numbers of its own here, or 0 if all ranks draw equal ones."""
    context = tf.distribute.get_replica_context()
    if not isinstance(context, CoarseReplicaContext):
        return 0
    extended = context.strategy.extended
    return 0 if extended.gradients_are_summed else extended.rank


def _seeds_apart(get_seed: Any) -> Any:  # noqa: ANN401
    """Wrap `get_seed`, which seeds operations such as tf.random.normal, unless they have their own seeds."""

    def seeds_here(op_seed: int | None) -> tuple[int | None, int | None]:
        seeds = get_seed(op_seed)
        return seeds_of(seeds, _worker()) if op_seed is None and seeds[0] is not None else seeds

    return seeds_here


def _keys_apart(preprocess_key: Any) -> Any:  # noqa: ANN401
    """Wrap `_preprocess_key` of tf.random.Generator.

    A generator made within a scope draws apart by itself, but would do so in optimizers too.
    """

    def key_here(self: Any, key: tf.Tensor) -> tf.Tensor:  # noqa: ANN401
        context = tf.distribute.get_replica_context()
        if not isinstance(context, CoarseReplicaContext):
            return preprocess_key(self, key)
        if context.strategy.extended.gradients_are_summed:
            return key
        if is_strategy_variable(self.state, CoarseExtended):
            return preprocess_key(self, key)
        return _key_of(key, _worker(), self.algorithm)

    return key_here


def _key_of(key: tf.Tensor, worker: int, algorithm: int) -> tf.Tensor:
    """Return a generator's key on a worker; rank 0 keeps it."""
    if worker == 0:
        return key
    counter = tf.constant([worker, 0], tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[1], key=key, counter=counter, alg=algorithm, dtype=tf.uint64
    )


def _states_apart(next_seed: Any) -> Any:  # noqa: ANN401
    """Wrap `next` of Keras' SeedGenerator; one made within the scope draws equally, as under MirroredStrategy."""

    def seed_here(self: keras.random.SeedGenerator, *args: Any, **kwargs: Any) -> tf.Tensor:  # noqa: ANN401
        seed, worker = next_seed(self, *args, **kwargs), _worker()
        if worker == 0 or is_strategy_variable(self.state, CoarseExtended):
            return seed
        return seed + tf.constant(np.array(seeds_of((0, 0), worker)), seed.dtype)

    return seed_here
