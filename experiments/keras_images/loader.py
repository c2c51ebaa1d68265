"""Images as tf.data sees them: global batches whose rows follow from the seed and the step alone.

[Note: one stream] A dataset numbers the images of all steps, end to end. The number decides which image it is (a
shuffle of its own for each epoch, computed without state) and how it is cropped and flipped. So a stream can be split
over workers before anything is read: the shard below is filled in by `Strategy.experimental_distribute_dataset`, which
`fit` calls, and all workers' rows of a step together are the rows of one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from experiments.keras_images.folder import ImageFolderError, Part
from experiments.keras_images.settings import Augmentation, ImageTraining

CENTRE = 0.875
"""The part of an image's shorter side that validation looks at."""
WIDEST = 4 / 3
"""Of a crop's sides, the longer over the shorter."""
CHANNELS = 3


class Decoder:
    """Reads images by TensorFlow's own operations, and finds the one that could not be read.

    A function of Python would name it at once. But an iterator that is dropped while such a call is under way waits
    for it with Python's lock held, for ever (MapAndBatchDataset of TensorFlow 2.21).
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._paths: dict[str, None] = {}

    def expects(self, part: Part) -> None:
        """Images of this part will be read."""
        self._paths |= dict.fromkeys(part.paths)

    def pixels(self, path: tf.Tensor) -> tf.Tensor:
        """(height, width, 3) uint8 of the image in a file."""
        pixels = tf.io.decode_image(tf.io.read_file(path), channels=CHANNELS, expand_animations=False)
        pixels.set_shape([None, None, CHANNELS])
        return pixels

    @contextmanager
    def named(self) -> Iterator[None]:
        """Within, an image that cannot be read raises ImageFolderError with its path."""
        try:
            yield
        except tf.errors.OpError as error:
            unreadable = next(filter(None, map(self._refusal, self._paths)), None)
            if unreadable is None:
                raise
            raise ImageFolderError(unreadable) from error

    def _refusal(self, path: str) -> str | None:
        """Why an image cannot be read; None where it can."""
        try:
            self.pixels(tf.constant(path))
        except tf.errors.OpError as error:
            return f"rank {self._rank}: {path} cannot be read as an image ({error.message}); replace or remove it"
        return None


def train_batches(part: Part, settings: ImageTraining, decoder: Decoder, *, is_split: bool) -> tf.data.Dataset:
    """Endless batches of ((batch, size, size, 3) float32 from -1 to 1, (batch,) int64 labels)."""
    decoder.expects(part)
    num_images = len(part.paths)
    per_epoch = num_images // settings.batch * settings.batch
    paths, labels = tf.constant(part.paths), tf.constant(part.labels, tf.int64)
    seed = tf.constant(settings.seed, tf.int64)

    def image(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = tf.random.experimental.index_shuffle(number % per_epoch, [seed, number // per_epoch], num_images - 1)
        pixels = decoder.pixels(paths[index])
        varied = vary(pixels, settings.augmentation, settings.image_size, tf.stack([seed, number]))
        return varied, labels[index]

    return _batches(image, settings.batch, is_split=is_split)


def val_batches(part: Part, settings: ImageTraining, decoder: Decoder, *, is_split: bool) -> tf.data.Dataset:
    """All images once in `num_val_steps` batches of (images, labels, weights); those that fill the last weigh nothing.

    After that they begin anew, without end.
    """
    decoder.expects(part)
    num_images = len(part.paths)
    num_rows = num_val_steps(num_images, settings.batch) * settings.batch
    paths, labels = tf.constant(part.paths), tf.constant(part.labels, tf.int64)

    def image(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        row = number % num_rows
        index = tf.minimum(row, num_images - 1)
        pixels = centre(decoder.pixels(paths[index]), settings.image_size)
        return pixels, labels[index], tf.cast(row < num_images, tf.float32)

    return _batches(image, settings.batch, is_split=is_split)


def num_val_steps(num_images: int, batch: int) -> int:
    """Batches that hold all images."""
    return -(-num_images // batch)


def synthetic_batches(settings: ImageTraining, num_classes: int) -> tf.data.Dataset:
    """One batch of noise again and again, which costs nothing to load; shapes are those of `train_batches`."""
    generator = np.random.default_rng(settings.seed)
    shape = (settings.batch, settings.image_size, settings.image_size, CHANNELS)
    images = generator.uniform(-1, 1, shape).astype(np.float32)
    labels = generator.integers(num_classes, size=settings.batch)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def _batches(image: object, batch: int, *, is_split: bool) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(np.iinfo(np.int64).max)
    if is_split:
        hint = tf.data.experimental.SHARD_HINT
        numbers = numbers.shard(hint, hint)
    dataset = numbers.map(image, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.HINT
    return (dataset.with_options(options) if is_split else dataset).prefetch(tf.data.AUTOTUNE)


def vary(pixels: tf.Tensor, augmentation: Augmentation, size: int, seed: tf.Tensor) -> tf.Tensor:
    """A random crop of (height, width, 3) uint8, of random shape, as (size, size, 3) float32; perhaps mirrored."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(pixels),
        tf.zeros([1, 0, 4]),
        seed,
        aspect_ratio_range=(1 / WIDEST, WIDEST),
        area_range=(augmentation.least_area, 1),
        use_image_if_no_bounding_boxes=True,
    )
    varied = scaled(tf.slice(pixels, begin, extent), size)
    return tf.image.stateless_random_flip_left_right(varied, seed) if augmentation.flip else varied


def centre(pixels: tf.Tensor, size: int) -> tf.Tensor:
    """The square in the middle of (height, width, 3) uint8, as (size, size, 3) float32."""
    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    side = tf.cast(CENTRE * tf.cast(tf.minimum(height, width), tf.float32), tf.int32)
    side = tf.maximum(side, 1)
    begin = [(height - side) // 2, (width - side) // 2]
    return scaled(pixels[begin[0] : begin[0] + side, begin[1] : begin[1] + side], size)


def scaled(pixels: tf.Tensor, size: int) -> tf.Tensor:
    """(height, width, 3) from 0 to 255 as (size, size, 3) float32 from -1 to 1."""
    resized = tf.image.resize(tf.cast(pixels, tf.float32), [size, size])
    return tf.ensure_shape(resized, [size, size, CHANNELS]) / 127.5 - 1
