"""Batches of no rows, which a worker runs whose data are over while others finish theirs."""

from typing import Any

import tensorflow as tf

from coarse.errors import ConfigError


def empty_batch(spec: Any) -> Any:  # noqa: ANN401
    """A batch of no rows, nested as `spec` is, the type specification of batches; extents not known are 0.

    Raises:
        ConfigError: a component of a kind that has no rows.
    """
    return tf.nest.map_structure(_empty, spec)


def _empty(spec: tf.TypeSpec) -> Any:  # noqa: ANN401
    if isinstance(spec, type(tf.type_spec_from_value(None))):
        return None
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec) or spec.shape.rank in (None, 0):
        raise ConfigError(
            f"a worker whose files end earlier needs a batch of no rows, and there is none of {spec}; batch the "
            "dataset into tensors, or set auto_shard_policy to DATA"
        )
    extents = [0, *(extent or 0 for extent in spec.shape[1:])]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(extents)], tf.int64), tf.zeros([0], spec.dtype), extents)
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [0, *extents[1 + spec.ragged_rank :]]
        no_rows = tf.zeros([1], spec.row_splits_dtype)
        return tf.RaggedTensor.from_nested_row_splits(tf.zeros(inner, spec.dtype), [no_rows] * spec.ragged_rank)
    return tf.zeros(extents, spec.dtype)
