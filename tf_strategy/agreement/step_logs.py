"""The logs of Keras' training and test steps, which callbacks of all workers see alike."""

from typing import Any

import numpy as np
import tensorflow as tf

from coarse.protocol.dtypes import Op
from tf_strategy.sums.operations import Operations


def means_of_all(operations: Operations, logs: Any) -> Any:  # noqa: ANN401
    """Nested logs, of which every worker has its own, with the means over workers in place of numbers.

    All numbers go as one float64 vector, so that workers synchronise once. A mean has the type of its numbers, one of
    integers rounded towards zero, as under MirroredStrategy. Variables, and what is no number, stay as they are.
    """
    if operations.num_workers == 1:
        return logs
    leaves = [_tensor_of(leaf) for leaf in tf.nest.flatten(logs)]
    places = [place for place, leaf in enumerate(leaves) if _is_number(leaf)]
    if places:
        means = _means(operations, [leaves[place] for place in places])
        for place, mean in zip(places, means, strict=True):
            leaves[place] = mean
    return tf.nest.pack_sequence_as(logs, leaves)


def _means(operations: Operations, numbers: list[tf.Tensor]) -> list[tf.Tensor]:
    vector = tf.concat([tf.cast(tf.reshape(number, [-1]), tf.float64) for number in numbers], 0)
    (total,) = operations.reduce(Op.SUM, [vector])
    parts = tf.split(total / operations.num_workers, [tf.size(number) for number in numbers])
    return [_as(part, number) for part, number in zip(parts, numbers, strict=True)]


def _as(mean: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    mean = tf.cast(tf.reshape(mean, tf.shape(like)), like.dtype)
    mean.set_shape(like.shape)
    return mean


def _tensor_of(leaf: Any) -> Any:  # noqa: ANN401
    """A number of Python's or numpy's as a tensor, since it may be one on another worker."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, int | float | np.number | np.ndarray) else leaf


def _is_number(leaf: Any) -> bool:  # noqa: ANN401
    return isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_integer)
