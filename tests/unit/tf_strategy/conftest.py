"""Strategies for tests of tf_strategy."""

import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def mirrored_strategy() -> tf.distribute.MirroredStrategy:
    """TensorFlow's own strategy on which ours is built."""
    return tf.distribute.MirroredStrategy(["CPU:0"])
