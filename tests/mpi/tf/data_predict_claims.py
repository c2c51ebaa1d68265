"""What predict gives back on every rank."""

import tempfile
from pathlib import Path

import keras
import tensorflow as tf

from tests.mpi.tf.data_training import (
    BATCH,
    MIRRORED,
    NUM_WORKERS,
    ODD,
    RANK,
    STRATEGY,
    dataset,
    model,
    require_alike,
    rows,
)
from tests.support.claims import takes_all


def predict_gives_every_rank_all_rows_in_order() -> None:
    x = rows(ODD)[0]
    for steps in (1, 3) if takes_all() else (3,):
        ours, alone = (model(strategy=strategy, steps=steps) for strategy in (STRATEGY, None))
        wanted = alone.predict(x, verbose=0)
        require_alike(ours.predict(x, batch_size=BATCH, verbose=0), wanted)
        require_alike(ours.predict(dataset(ODD), verbose=0), wanted)
        require_alike(ours.predict(dataset(ODD).filter(lambda *_: True), verbose=0), wanted)
        require_alike(ours.predict(x[: BATCH - 1], verbose=0), wanted[: BATCH - 1])


def predict_gives_rows_of_files_in_order() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in "abc"]
        for number, file in enumerate(files):
            Path(file).write_text("".join(f"{number}.{line}\n" for line in range(5 + number)))
        lines = tf.data.TextLineDataset(files).batch(4).map(tf.strings.to_number)
        with STRATEGY.scope():
            same = keras.Sequential([keras.layers.Input(()), keras.layers.Lambda(lambda number: number[:, None])])
        require_alike(same.predict(lines, verbose=0)[:, 0], [float(n) for n in tf.concat(list(lines), 0)])


def predict_gathers_nested_ragged_and_scalar_outputs() -> None:
    class Outputs(keras.Model):
        def call(self, x: tf.Tensor) -> dict[str, object]:
            lengths = tf.cast(x[:, 0] > 0, tf.int64) + 1
            return {
                "pair": (x, tf.cast(x[:, 0] > 0, tf.bool)),
                "ragged": tf.RaggedTensor.from_row_lengths(tf.repeat(x[:, 1], lengths), lengths),
                "sum": tf.reduce_sum(x),
            }

    x = rows(ODD)[0]
    with STRATEGY.scope():
        found = Outputs().predict(x, batch_size=BATCH, verbose=0)
    wanted = Outputs().predict(x, batch_size=BATCH, verbose=0)
    require_alike(found["pair"][0], wanted["pair"][0])
    require_alike(found["pair"][1], wanted["pair"][1])
    require_alike(found["ragged"].flat_values, wanted["ragged"].flat_values)
    require_alike(found["ragged"].row_lengths(), wanted["ragged"].row_lengths())
    assert found["sum"].shape == (NUM_WORKERS * len(wanted["sum"]),)
    require_alike(found["sum"].reshape(-1, NUM_WORKERS).sum(1), wanted["sum"])


def predict_on_batch_gives_the_rows_of_all_workers_batches() -> None:
    x = rows(NUM_WORKERS * BATCH)[0]
    ours, mirrored = model(strategy=STRATEGY), model(strategy=MIRRORED)
    require_alike(ours.predict_on_batch(x[RANK * BATCH :][:BATCH]), model().predict(x, verbose=0))
    require_alike(ours.predict_on_batch(x[:BATCH]), mirrored.predict_on_batch(x[:BATCH]))
