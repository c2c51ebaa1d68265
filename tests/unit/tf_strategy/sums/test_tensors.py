"""TensorFlow's types on the wire."""

import numpy as np
import pytest
import tensorflow as tf

from coarse.protocol.dtypes import DType
from tf_strategy.sums.tensors import as_tensor, require_bits, stored, wire_type_of

ADDED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8)
OTHERS = (tf.bool, tf.string, tf.complex64, tf.complex128, tf.int8, tf.uint16, tf.resource, tf.variant, tf.qint8)


@pytest.mark.parametrize("dtype", ADDED, ids=lambda dtype: dtype.name)
def test_a_type_that_devices_add_is_stored_as_they_store_it(dtype):
    tensor = tf.cast([1.0, 2.5], dtype)
    wire = wire_type_of(dtype, "a sum")
    assert wire.label == dtype.name
    assert stored(tensor).numpy().dtype == DType(wire).storage
    assert stored(tensor).numpy().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", OTHERS, ids=lambda dtype: dtype.name)
def test_a_type_that_devices_do_not_add_is_refused_with_the_remedy(dtype):
    with pytest.raises(TypeError, match=rf"a sum: tensors of {dtype.name} cannot be synchronised; cast them") as caught:
        wire_type_of(dtype, "a sum")
    for known in ADDED:
        assert known.name in str(caught.value)


def test_what_is_no_block_of_bytes_is_refused_by_name():
    for dtype in (tf.string, tf.resource, tf.variant):
        with pytest.raises(TypeError, match=f"the first value of 'x': a tensor of tf.{dtype.name} cannot be sent"):
            require_bits(dtype, "the first value of 'x'")
    for dtype in (*ADDED, tf.bool, tf.complex64, tf.uint16):
        require_bits(dtype, "x")


def test_a_number_becomes_a_tensor_of_the_type_of_what_it_is_for():
    variable = tf.Variable(1.0, dtype=tf.float64)
    for value in (2, 2.0, np.float32(2), np.int64(2)):
        assert as_tensor(value, variable).dtype == tf.float64
    assert as_tensor(2).dtype == tf.int32
    assert as_tensor(2, "CPU:0").dtype == tf.int32


def test_tensors_rows_and_variables_stay_what_they_are():
    tensor = tf.constant([1.0])
    for value in (tensor, tf.Variable(tensor), tf.IndexedSlices(tensor, tf.constant([0]))):
        assert as_tensor(value, tf.Variable(1, dtype=tf.int64)) is value
