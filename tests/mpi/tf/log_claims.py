"""What callbacks are told after a batch and an epoch, also of steps of a model's own."""

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.training import (
    BATCH,
    compiled,
    fit,
    mlp,
    require_same_everywhere,
    require_same_history,
    rows,
    strategy,
)
from tests.support.claims import in_test_all


class StepsOfItsOwn(keras.Model):
    """Its steps return a replica's own numbers, under other names than its metrics have."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__()
        self.inner, self.num_replicas = mlp(), num_replicas

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.inner(x)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, object]:
        with tf.GradientTape() as tape:
            logs = self.test_step(data)
            loss = logs["error"] / self.num_replicas
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return logs

    def test_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, object]:
        x, y = data
        error = tf.reduce_mean(tf.square(self(x) - y))
        return {"error": error, "half": tf.cast(error, tf.float16), "rows": tf.shape(x)[0]}


@in_test_all
def logs_of_steps_of_ones_own_are_mirrored_strategys_on_the_same_split() -> None:
    if strategy().num_replicas_in_sync != 2:
        return

    def logs(on: tf.distribute.Strategy, **settings: object) -> list[dict[str, list[float]]]:
        with on.scope():
            model = StepsOfItsOwn(2)
            model.compile(keras.optimizers.SGD(0.05), **settings)
        x, y = rows(BATCH + 7)
        given = {"batch_size": BATCH, "verbose": 0}
        no_rows = model.evaluate(x[: BATCH + 1], y[: BATCH + 1], return_dict=True, **given)
        return [fit(model, 1, x=x, y=y, validation_data=(x, y)), no_rows]

    wanted = logs(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), run_eagerly=True)
    assert np.isnan(wanted[1]["error"])  # the second replica's, of the batch that left it no row
    for settings in ({"run_eagerly": True}, {"steps_per_execution": 2}):
        for found, theirs in zip(logs(strategy(), **settings), wanted, strict=True):
            require_same_history(found, theirs)


class LogsKept(keras.callbacks.Callback):
    """The loss after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.losses.append((logs or {})["loss"])


def rows_without_a_number_end_all_ranks_in_the_same_batch() -> None:
    x, y = rows()
    y[3 * BATCH - 1] = np.nan  # the last rank's of the third batch
    with strategy().scope():
        model = compiled(mlp())
    kept = LogsKept()
    fit(model, x=x, y=y, callbacks=[kept, keras.callbacks.TerminateOnNaN()])
    assert list(np.isnan(kept.losses)) == [False, False, True]
    require_same_everywhere(kept.losses)


CLAIMS = [
    logs_of_steps_of_ones_own_are_mirrored_strategys_on_the_same_split,
    rows_without_a_number_end_all_ranks_in_the_same_batch,
]
