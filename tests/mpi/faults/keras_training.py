"""A Keras training that kills ranks at stated steps, each kill once, and prints what its weights and history come to.

keras_training.py FOLDER KIND [WHO:STEP ...]; WHO is a worker's number, or `test` for the last worker's validation.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import keras
import numpy as np
import tensorflow as tf

import coarse
from tf_strategy import CoarseStrategy, Resumable

FOLDER, KIND, KILLS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
ROWS, BATCH, EPOCHS = 96, 24, 3
STEPS = {"steps": 5, "finite steps": 3}
"""Steps of an epoch, by kind, where they are given."""


class Killer(keras.callbacks.Callback):
    """Ends this process where it is told to, unless that was done before."""

    def __init__(self) -> None:
        super().__init__()
        self.step = -1
        self.tests = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.first = epoch * (self.params["steps"] or ROWS // BATCH)

    def on_train_batch_begin(self, batch, logs=None):
        self.die(f"{coarse.rank()}:{self.first + batch}")

    def on_test_batch_begin(self, batch, logs=None):
        if coarse.rank() == coarse.size() - 1:
            self.tests += 1
            self.die(f"test:{self.tests}")

    def die(self, place):
        mark = FOLDER / place.replace(":", "-")
        if place in KILLS and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Rates(keras.callbacks.Callback):
    """Draws rates from numpy's generator, and counts the steps that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * np.random.uniform(0.9, 1.0))

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Noisy(keras.Model):
    """Draws within its step."""

    def train_step(self, data):
        pixels, labels = data
        noise = tf.random.normal([16]) if KIND == "stateful draws" else keras.random.normal([16])
        return super().train_step((pixels + noise, labels))


def data(rows: tf.data.Dataset) -> tf.data.Dataset:
    """The batches of a kind."""
    if KIND == "steps":
        return rows.shuffle(ROWS).repeat().batch(BATCH)
    if KIND == "finite steps":
        return rows.shuffle(ROWS).repeat(2).batch(BATCH)
    if KIND == "unknown length":
        return rows.shuffle(ROWS).filter(lambda pixels, _: tf.reduce_sum(pixels) > -4).batch(BATCH)
    if KIND == "draws in data":
        return rows.map(lambda pixels, label: (pixels + tf.random.normal([16]), label)).batch(BATCH)
    if KIND == "generator":
        pairs = [(pixels.numpy(), label.numpy()) for pixels, label in rows]
        return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=rows.element_spec).batch(BATCH)
    return rows.shuffle(ROWS).batch(BATCH)


def main() -> None:
    """Train and print."""
    if KIND == "no seed":
        np.random.seed(7)
    else:
        keras.utils.set_random_seed(7)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = CoarseStrategy()
    numbers = np.random.default_rng(0)
    pixels = numbers.normal(size=(ROWS, 16)).astype("f4")
    labels = (pixels[:, :4] + numbers.normal(size=(ROWS, 4))).argmax(axis=1)
    rows = tf.data.Dataset.from_tensor_slices((pixels, labels))
    with strategy.scope():
        inputs = keras.Input((16,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(24, activation="relu")(inputs))
        outputs = keras.layers.Dense(4)(keras.layers.Dropout(0.3)(hidden))
        model = (Noisy if "draws" in KIND and KIND != "draws in data" else keras.Model)(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"], run_eagerly=KIND.startswith("eager"),
            steps_per_execution=3 if KIND == "three at once" else 1,
        )  # fmt: skip
    patient = keras.callbacks.EarlyStopping(patience=1, min_delta=0.05, restore_best_weights=True)
    rates, every = Rates(), 3 if KIND == "each third" else 1
    callbacks = [Killer(), keras.callbacks.ReduceLROnPlateau(patience=1), patient, Resumable(every=every), rates]
    if KIND == "backup":
        callbacks.append(keras.callbacks.BackupAndRestore(FOLDER / "backup"))
    arrays = {"y": labels, "batch_size": BATCH} if KIND == "arrays" else {}
    history = model.fit(
        pixels if arrays else data(rows), **arrays, epochs=EPOCHS, steps_per_epoch=STEPS.get(KIND), verbose=0,
        validation_data=rows.shuffle(ROWS).batch(BATCH), callbacks=callbacks,
    ).history  # fmt: skip
    if KIND == "twice":
        model.fit(data(rows), verbose=0, callbacks=[Resumable()])
    found = hashlib.sha256(repr((history, rates.seen)).encode())
    for variable in [*model.weights, *model.optimizer.variables]:
        found.update(np.ascontiguousarray(variable.numpy()).tobytes())
    print(f"worker {coarse.rank()}: {found.hexdigest()}", flush=True)


main()
