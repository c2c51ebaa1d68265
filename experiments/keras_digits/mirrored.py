"""Training on the digits as a user of Keras writes it."""

import keras
import tensorflow as tf

from experiments.keras_digits.data import Digits
from experiments.keras_digits.model import (
    Trained,
    digits_model,
    optimizer,
    steps_per_epoch,
    test_batches,
    train_batches,
)
from experiments.keras_digits.settings import DigitsTraining


def train(settings: DigitsTraining, digits: Digits, callbacks: list[keras.callbacks.Callback]) -> Trained:
    """Make the model, train it and test it."""
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = digits_model()
        model.compile(
            optimizer=optimizer(settings, digits.train),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        train_batches(settings, digits.train),
        epochs=settings.epochs,
        steps_per_epoch=steps_per_epoch(settings, digits.train),
        callbacks=callbacks,
        shuffle=False,  # the batches are shuffled already
        verbose=0,
    ).history
    _, test_accuracy = model.evaluate(test_batches(settings, digits.test), verbose=0)
    return Trained(model=model, history=history, test_accuracy=float(test_accuracy))
