"""A training of ResNet50 from its strategy to its summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import keras
import tensorflow as tf

from coarse.session import is_initialized
from experiments.agreement import Pushed, check_alike, check_finite, check_pushed, digest, gradient_bytes, place, pushed
from experiments.keras_digits.settings import check_batch
from experiments.keras_images.folder import ImageFolder
from experiments.keras_images.loader import Decoder, num_val_steps, synthetic_batches, train_batches, val_batches
from experiments.keras_images.model import compiled
from experiments.keras_images.rates import highest_rate, rate_at
from experiments.keras_images.report import (
    StepRecord,
    Summary,
    Validation,
    has_line,
    speed_of,
    step_line,
    validation_line,
)
from experiments.keras_images.settings import ImageTraining

SYNTHETIC_CLASSES = 1000
ONLY_SOME = "only some workers did"


def strategy_of(mode: str) -> tf.distribute.Strategy:
    """The strategy of a mode: the one line that a user changes, and its import."""
    if mode == "single":
        return tf.distribute.get_strategy()
    from tf_strategy import CoarseStrategy  # here, so that one process runs without it

    return CoarseStrategy({"mode": mode})


class StepWatch(keras.callbacks.Callback):
    """Times every step, and has rank 0 print what comes of it."""

    def __init__(self, settings: ImageTraining, num_steps: int, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._settings = settings
        self._num_steps = num_steps
        self._now_s = now_s
        self._is_first = place()[0] == 0
        self._ended_s: float | None = None
        self.records: list[StepRecord] = []
        self.validations: list[Validation] = []
        self.epoch_loss = math.nan
        """The mean over all workers and steps of the last epoch."""

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        if self._ended_s is None:
            self._ended_s = self._now_s()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        assert logs is not None
        assert self._ended_s is not None
        loss, began_s = float(logs["loss"]), self._ended_s  # the loss is there once the step is done
        self._ended_s = self._now_s()
        record = StepRecord(step=len(self.records), loss=loss, step_s=self._ended_s - began_s)
        self.records.append(record)
        per_epoch = self._num_steps // self._settings.num_epochs
        if self._is_first and has_line(batch, per_epoch):
            print(step_line(record, self._num_steps, self._rate(record.step), self._settings.batch), flush=True)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        assert logs is not None
        self._ended_s = None  # validation is no part of the next step
        self.epoch_loss = float(logs["loss"])
        if "val_accuracy" in logs:
            cross_entropy = float(logs["val_cross_entropy"])
            found = Validation(
                epoch=epoch,
                accuracy=float(logs["val_accuracy"]),
                cross_entropy=cross_entropy if math.isfinite(cross_entropy) else None,
            )
            self.validations.append(found)
            if self._is_first:
                print(validation_line(found), flush=True)

    def _rate(self, step: int) -> float:
        chosen = self._settings
        highest = highest_rate(chosen.learning_rate, chosen.batch)
        return rate_at(step, self._num_steps, highest, chosen.schedule, chosen.warmup)


class Run:
    """A model, its images and what came of them; `images` of None are synthetic."""

    def __init__(
        self, settings: ImageTraining, images: ImageFolder | None, checkpoints: Path | None, now_s: Callable[[], float]
    ) -> None:
        self.strategy = strategy_of(settings.mode)
        self.rank, self.num_workers = place()
        self._settings = settings
        self._images = images
        num_images = len(images.train.paths) if images else settings.batch
        check_batch(settings.batch, num_images, self.rank, self.num_workers)
        if images is not None:
            check_alike({"files": images.digest()}, "differs between the folders of --data on the workers' nodes")
        self._num_classes = len(images.classes) if images else SYNTHETIC_CLASSES
        self._steps_per_epoch = settings.steps_per_epoch(num_images)
        num_steps = self._steps_per_epoch * settings.num_epochs
        with self.strategy.scope():
            self.model = compiled(settings, self._num_classes, num_steps)
        self.watch = StepWatch(settings, num_steps, now_s)
        self._callbacks: list[keras.callbacks.Callback] = [self.watch]
        if checkpoints is not None and self.rank == 0:
            checkpoints.mkdir(parents=True, exist_ok=True)
            name = str(checkpoints / "epoch-{epoch:03d}.weights.h5")
            self._callbacks.append(keras.callbacks.ModelCheckpoint(name, save_weights_only=True))

    def train(self) -> None:
        """Train, and validate after every epoch; ImageFolderError where an image cannot be read."""
        decoder = Decoder(self.rank)
        with decoder.named():
            self._fit(decoder)
        check_finite([record.loss for record in self.watch.records], self.rank)
        ends = {"loss": self.watch.epoch_loss, "weights": digest(self.model.get_weights())}
        check_alike(ends, ONLY_SOME)

    def _fit(self, decoder: Decoder) -> None:
        settings, images = self._settings, self._images
        is_split = self.num_workers > 1
        if images is None:
            batches, validation = synthetic_batches(settings, self._num_classes), {}
        else:
            batches = train_batches(images.train, settings, decoder, is_split=is_split)
            validation = {
                "validation_data": val_batches(images.val, settings, decoder, is_split=is_split),
                "validation_steps": num_val_steps(len(images.val.paths), settings.batch),
            }
        self.model.fit(
            batches,
            epochs=settings.num_epochs,
            steps_per_epoch=self._steps_per_epoch,
            callbacks=self._callbacks,
            shuffle=False,
            verbose=0,
            **validation,
        )

    def summary(self) -> Summary:
        """The run in numbers; UnsynchronisedError where it pushed less than its gradients."""
        found = pushed() if is_initialized() else Pushed(0, 0)
        records, images = self.watch.records, self._images
        if self.num_workers > 1:
            nbytes = gradient_bytes(self.model.trainable_variables)
            check_pushed(found, len(records), nbytes, self.rank)
        step_s, images_per_s = speed_of(records, self._settings.batch)
        return Summary(
            mode=self._settings.mode,
            workers=self.num_workers,
            num_parameters=self.model.count_params(),
            num_classes=self._num_classes,
            num_train=len(images.train.paths) if images else 0,
            num_val=len(images.val.paths) if images else 0,
            steps=len(records),
            loss=self.watch.epoch_loss,
            step_s=step_s,
            images_per_s=images_per_s,
            pushes=found.pushes,
            pushed_bytes=found.nbytes,
            validation=self.watch.validations[-1] if self.watch.validations else None,
        )
