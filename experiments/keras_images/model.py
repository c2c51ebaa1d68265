"""ResNet50 with an optimizer whose rate follows a plan."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.keras_images.rates import highest_rate, rates
from experiments.keras_images.settings import ImageTraining

MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4


class PlannedRate(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of every step, looked up; the last one holds on."""

    def __init__(self, plan: list[float]) -> None:
        self._plan = np.array(plan, np.float32)

    def __call__(self, step: Any) -> tf.Tensor:  # noqa: ANN401
        last = len(self._plan) - 1
        return tf.gather(self._plan, tf.minimum(tf.cast(step, tf.int64), last))

    def get_config(self) -> dict[str, Any]:
        return {"plan": self._plan.tolist()}


def resnet50(settings: ImageTraining, num_classes: int) -> keras.Model:
    """(n, size, size, 3) float32 to (n, num_classes) float32 logits, from random weights.

    Its dtype policy is the current one.
    """
    shape = (settings.image_size, settings.image_size, 3)
    body = keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape, pooling="avg")
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(body.output)
    return keras.Model(body.input, logits, name="resnet50")


def compiled(settings: ImageTraining, num_classes: int, num_steps: int) -> keras.Model:
    """The model, ready to train for so many steps."""
    keras.mixed_precision.set_global_policy(
        "float32" if settings.precision == "float32" else f"mixed_{settings.precision}"
    )
    keras.utils.set_random_seed(settings.seed)
    model = resnet50(settings, num_classes)
    highest = highest_rate(settings.learning_rate, settings.batch)
    plan = rates(num_steps, highest, settings.schedule, settings.warmup)
    model.compile(
        optimizer=keras.optimizers.SGD(PlannedRate(plan.tolist()), momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="cross_entropy"),
        ],
    )
    return model
