"""Outputs of Keras' steps, equal on all workers: means of training and test logs, and predicted rows."""

from typing import Any

import numpy as np
import tensorflow as tf

from coarse.protocol.dtypes import Op
from tf_strategy.sums.operations import Operations


def means_of_all(operations: Operations, logs: Any) -> Any:  # noqa: ANN401
    """Return nested logs with each number replaced by its mean over all workers.

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
    """Convert a Python or numpy number to a tensor, since it may be a tensor on another worker."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, int | float | np.number | np.ndarray) else leaf


def _is_number(leaf: Any) -> bool:  # noqa: ANN401
    return isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_integer)


def rows_of_all(operations: Operations, outputs: Any) -> Any:  # noqa: ANN401
    """Return nested outputs with the rows of all workers joined end to end, in order of rank.

    A number per worker becomes a vector, as under MirroredStrategy; what is no tensor stays as it is.

    Raises:
        TypeError: outputs of a type that has no bits to send, strings for instance.
    """
    return tf.nest.map_structure(lambda output: _joined(operations, output), outputs)


def _joined(operations: Operations, output: Any) -> Any:  # noqa: ANN401
    if isinstance(output, tf.RaggedTensor):
        flat = tf.concat(operations.gather(output.flat_values), 0)
        lengths = [tf.concat(operations.gather(level), 0) for level in output.nested_row_lengths()]
        return tf.RaggedTensor.from_nested_row_lengths(flat, lengths)
    if isinstance(output, tf.SparseTensor):
        parts = zip(
            operations.gather(output.indices),
            operations.gather(output.values),
            operations.gather(output.dense_shape[tf.newaxis]),
            strict=True,
        )
        tensors = [tf.SparseTensor(indices, values, shape[0]) for indices, values, shape in parts]
        return tf.sparse.concat(0, tensors, expand_nonconcat_dims=True)
    if not tf.is_tensor(output):
        return output
    return tf.concat(operations.gather(output[tf.newaxis] if output.shape.rank == 0 else output), 0)
