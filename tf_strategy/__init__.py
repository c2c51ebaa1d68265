"""coarse for TensorFlow: two lines turn a Keras script data-parallel.

from tf_strategy import CoarseStrategy
strategy = CoarseStrategy()          # in place of tf.distribute.MirroredStrategy()
with strategy.scope():
    model = ...; model.compile(...)
model.fit(dataset)                   # under mpirun, or coarse run

Imports point one way, each file to those before it: versions, failures, private_names, private_keras; sums/; data/
beside agreement/; extended; gradients beside draws; strategy; keeping; resumable.
"""

import os

import keras
import tensorflow as tf

from tf_strategy.versions import require_supported, require_tensorflow_backend

# Before anything private is imported, which another version may not have.
require_supported(
    tensorflow=tf.__version__, keras=keras.__version__, legacy_keras=os.environ.get("TF_USE_LEGACY_KERAS")
)
require_tensorflow_backend(keras.config.backend())

from tf_strategy.failures import cause_of  # noqa: E402
from tf_strategy.resumable import Resumable  # noqa: E402
from tf_strategy.strategy import CoarseStrategy  # noqa: E402

__all__ = ["CoarseStrategy", "Resumable", "cause_of"]
