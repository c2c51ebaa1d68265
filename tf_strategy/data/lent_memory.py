"""Batches whose memory is a user's own become TensorFlow's, which may then write to it.

[Note: lent memory] TensorFlow takes what a function of Python returns to a dataset (a generator, a `PyDataset`,
`tf.numpy_function`) without a copy where it lies on a 64-byte boundary, and marks it as memory that no operation may
reuse for its result. Rows that are cut from it, as a worker's share of a global batch is, lie in that memory and lack
the mark: the last operation that reads them, such as a loss that subtracts predictions from labels, may write its
result into the user's array. So a share is copied once, where it leaves the dataset.
"""

import tensorflow as tf

from tf_strategy.private_names import has_lent_memory


def owned(part: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements, in memory of TensorFlow's own; see [Note: lent memory]."""
    if not has_lent_memory(part):
        return part
    whole = tf.data.Dataset.zip((part,))  # else map would take tuples apart
    return whole.map(lambda element: tf.nest.map_structure(_copy, element, expand_composites=True))


def _copy(component: tf.Tensor | None) -> tf.Tensor | None:
    """A tensor of numbers copied; `tf.identity` would be the same memory. All else is TensorFlow's own already."""
    if component is None or component.dtype in (tf.string, tf.variant, tf.resource):
        return component
    return tf.raw_ops.DeepCopy(x=component)
