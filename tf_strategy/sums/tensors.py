"""TensorFlow's types on the wire."""

from typing import Any

import tensorflow as tf

from coarse.protocol.dtypes import DType
from tf_strategy.private_names import has_replica_values

_WIRE_OF = {
    tf.float16: DType.FLOAT16,
    tf.bfloat16: DType.BFLOAT16,
    tf.float32: DType.FLOAT32,
    tf.float64: DType.FLOAT64,
    tf.int32: DType.INT32,
    tf.int64: DType.INT64,
    tf.uint8: DType.UINT8,
}


def wire_type_of(dtype: tf.DType, what: str) -> DType:
    """The type that a tensor has on the wire; TypeError, with the remedy, where devices cannot add it."""
    wire = _WIRE_OF.get(dtype)
    if wire is None:
        known = ", ".join(sorted(known.name for known in _WIRE_OF))
        raise TypeError(
            f"{what}: tensors of {dtype.name} cannot be synchronised; cast them, tf.cast(x, tf.int32) of a tf.bool "
            f"for instance (known: {known})"
        )
    return wire


def as_tensor(value: Any, like: Any = None) -> Any:  # noqa: ANN401
    """A tensor, rows or a replica's value as they are; a number as a tensor of the type that `like` has, if any."""
    if tf.is_tensor(value) or has_replica_values(value):
        return value
    return tf.convert_to_tensor(value, dtype=getattr(like, "dtype", None))


def require_bits(dtype: tf.DType, what: str) -> None:
    """TypeError, with the remedy, where a tensor is no block of bytes that could be sent."""
    if dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(f"{what}: a tensor of tf.{dtype.name} cannot be sent; make numbers of it, by tf.io.decode_raw")


def stored(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in the type in which the wire stores it: bfloat16 as uint16."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
