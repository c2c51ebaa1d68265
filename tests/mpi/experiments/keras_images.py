"""ResNet50 by the script on the digits, then what its loader claims; run as `coarse run` does, on every worker.

Usage: keras_images.py BODY FOLDER (for reports, rows, checkpoints and images); the body "small" stands in for
ResNet50, which takes most of the time.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import coarse
from experiments.keras_images.digits_folder import write_digits
from experiments.keras_images.folder import ImageFolderError, read_folder
from experiments.keras_images.loader import Decoder, num_val_steps, train_batches, val_batches
from experiments.keras_images.settings import ImageTraining
from experiments.train_resnet50_keras import main
from tests.support.claims import raises, report_claims

FOLDER = Path(sys.argv[2])
SMALL = ["--steps", "3", "--batch", "24", "--image-size", "32"]
SETTINGS = ImageTraining(batch=16, image_size=32)



def small(*, weights: None, include_top: bool, input_shape: tuple[int, int, int], pooling: str) -> keras.Model:
    """One convolution, normalised, in place of ResNet50's layers."""
    assert (weights, include_top, pooling) == (None, False, "avg")
    image = keras.layers.Input(input_shape)
    normalised = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3)(image))
    return keras.Model(image, keras.layers.GlobalAveragePooling2D()(normalised))


if sys.argv[1] == "small":
    keras.applications.ResNet50 = small
run = main(["--digits", *SMALL, "--out", str(FOLDER / "rows"), "--checkpoints", str(FOLDER / "checkpoints")])
images_folder = FOLDER / f"images{run.rank}"
write_digits(images_folder, seed=1)
images = read_folder(images_folder, run.rank)


def rows_of_all(name: str, row: np.ndarray) -> np.ndarray:
    """(worker, *row.shape) what each worker has."""
    rows = np.zeros((run.num_workers, *row.shape), row.dtype)
    rows[run.rank] = row
    return coarse.push_pull(rows, name, op=coarse.Sum)


def the_workers_rows_of_a_step_are_those_of_one_process() -> None:
    part, decoder = images.train, Decoder(run.rank)
    split = train_batches(part, SETTINGS, decoder, is_split=True)
    mine = iter(run.strategy.experimental_distribute_dataset(split))
    for pixels, labels in train_batches(part, SETTINGS, decoder, is_split=False).take(2):
        my_pixels, my_labels = next(mine)
        found = rows_of_all("pixels", my_pixels.numpy())
        assert found.shape == (2, 8, 32, 32, 3)
        for worker in range(run.num_workers):
            assert np.array_equal(found[worker], pixels[worker :: run.num_workers])
        assert np.array_equal(rows_of_all("labels", my_labels.numpy()).T.ravel(), labels)


def every_image_is_validated_once() -> None:
    part = images.val
    steps = num_val_steps(len(part.paths), SETTINGS.batch)
    split = val_batches(part, SETTINGS, Decoder(run.rank), is_split=True)
    mine = iter(run.strategy.experimental_distribute_dataset(split))
    counts = np.zeros(10)
    for _ in range(steps):
        _, labels, weights = next(mine)
        counts += np.bincount(labels.numpy(), weights.numpy(), minlength=10)
    assert np.array_equal(coarse.push_pull(counts, "counts", op=coarse.Sum), np.bincount(part.labels))


def an_epoch_has_every_image_once_and_the_next_another_order() -> None:
    settings = ImageTraining(batch=len(images.val.paths), image_size=32)
    first, second = train_batches(images.val, settings, Decoder(run.rank), is_split=False).take(2)
    assert np.array_equal(np.bincount(first[1]), np.bincount(images.val.labels))
    assert np.array_equal(np.bincount(second[1]), np.bincount(images.val.labels))
    assert not np.array_equal(first[1], second[1])


def an_image_that_cannot_be_read_is_named_with_rank_and_remedy() -> None:
    path = Path(images.train.paths[5])
    torn = path.read_bytes()[:60]
    path.write_bytes(torn)
    decoder = Decoder(run.rank)
    batches = train_batches(images.train, ImageTraining(batch=1437, image_size=32), decoder, is_split=False)
    with raises(ImageFolderError, f"rank {run.rank}: {path} cannot be read as an image", "replace or remove it"), \
            decoder.named():  # fmt: skip
        next(iter(batches))


def another_error_keeps_its_type() -> None:
    with raises(tf.errors.InvalidArgumentError, "mine"), Decoder(run.rank).named():
        raise tf.errors.InvalidArgumentError(None, None, "mine")


CLAIMS = (
    the_workers_rows_of_a_step_are_those_of_one_process,
    every_image_is_validated_once,
    an_epoch_has_every_image_once_and_the_next_another_order,
    an_image_that_cannot_be_read_is_named_with_rank_and_remedy,
    another_error_keeps_its_type,
)
report_claims(CLAIMS, FOLDER)
