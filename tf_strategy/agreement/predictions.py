"""The rows that all workers predicted, on every worker, in order of rank."""

from typing import Any

import tensorflow as tf

from tf_strategy.sums.operations import Operations


def rows_of_all(operations: Operations, outputs: Any) -> Any:  # noqa: ANN401
    """Nested outputs, of whose tensors every worker has its rows, with all workers' rows end to end.

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
