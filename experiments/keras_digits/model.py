"""A small convolutional network for the digits, its optimizer, and its batches."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from experiments.keras_digits.data import NUM_CLASSES, Images
from experiments.keras_digits.settings import DigitsTraining

MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a user's script ends with."""

    model: keras.Model
    history: dict[str, list[float]]
    """Of each epoch the `loss`, in nats, and the `accuracy`, on the training images while they were learnt."""
    test_accuracy: float
    """On the whole test set, in the end."""


def digits_model() -> keras.Model:
    """The network: (n, 8, 8, 1) float32 to (n, 10) logits; 23,946 parameters."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(NUM_CLASSES),
        ]
    )


def steps_per_epoch(settings: DigitsTraining, images: Images) -> int:
    """How many whole global batches the images fill."""
    return len(images.labels) // settings.batch


def optimizer(settings: DigitsTraining, images: Images) -> keras.optimizers.Optimizer:
    """SGD with momentum, its rate falling to zero along a cosine."""
    num_steps = settings.epochs * steps_per_epoch(settings, images)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, num_steps)
    return keras.optimizers.SGD(rate, momentum=MOMENTUM)


def train_batches(settings: DigitsTraining, images: Images) -> tf.data.Dataset:
    """The global batches of all epochs, end to end.

    Their order follows from the seed alone, which that of `Dataset.shuffle` does not: how often an iterator is made
    differs between strategies.
    """
    generator = np.random.default_rng(settings.seed)
    num_images = steps_per_epoch(settings, images) * settings.batch
    orders = [generator.permutation(len(images.labels))[:num_images] for _ in range(settings.epochs)]
    indices = tf.data.Dataset.from_tensor_slices(np.concatenate(orders))
    chosen = indices.map(lambda index: (tf.gather(images.pixels, index), tf.gather(images.labels, index)))
    return chosen.batch(settings.batch, drop_remainder=True)


def test_batches(settings: DigitsTraining, images: Images) -> tf.data.Dataset:
    """All images in their order; the last batch may be a smaller one."""
    return tf.data.Dataset.from_tensor_slices((images.pixels, images.labels)).batch(settings.batch)
