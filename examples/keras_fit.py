"""Keras: the strategy is the one line that changes; the batch stays that of all workers together.

    coarse run --workers 2 --devices 1 examples/keras_fit.py
"""

import keras
import numpy as np

from tf_strategy import CoarseStrategy

strategy = CoarseStrategy()  # was tf.distribute.MirroredStrategy()
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
y = x.sum(axis=1, keepdims=True)

with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
history = model.fit(x, y, batch_size=64, epochs=3, verbose=0)
print("losses", *(f"{loss:.3f}" for loss in history.history["loss"]))
