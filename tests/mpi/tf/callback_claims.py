"""What callbacks, files and first values promise where several ranks train."""

from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import (
    BATCH,
    STEPS,
    compiled,
    everywhere,
    fit,
    mlp,
    pushed,
    require_close,
    require_equal,
    require_same_everywhere,
    require_same_history,
    require_same_model_everywhere,
    rows,
    strategy,
    twins,
)
from tests.support.claims import in_test_all


def folder() -> Path:
    """A new folder that all ranks know."""
    made = TemporaryDirectory(prefix="coarse") if strategy().is_chief else None
    path = Path(everywhere_text(made.name if made else ""))
    _folders.append(made)
    return path


def everywhere_text(text: str) -> str:
    """Rank 0's text."""
    return everywhere(np.frombuffer(text.encode(), np.uint8))[0].decode()


_folders: list[TemporaryDirectory[str] | None] = []
"""Kept until the job ends."""


@in_test_all
def early_stopping_ends_all_ranks_in_the_same_epoch_with_the_same_best_weights() -> None:
    ours, alone = twins(lambda: compiled(mlp(), keras.optimizers.SGD(0.7)))
    held_back = rows(32, seed=9)
    stops = [keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True) for _ in range(2)]
    found = fit(ours, 12, validation_data=held_back, callbacks=[stops[0]])
    wanted = fit(alone, 12, validation_data=held_back, callbacks=[stops[1]])
    assert 0 < stops[0].stopped_epoch == stops[1].stopped_epoch < 11
    require_equal(ours, alone)
    require_same_history(found, wanted)


@in_test_all
def learning_rates_change_alike() -> None:
    ours, alone = twins(lambda: compiled(mlp(), keras.optimizers.SGD(0.5)))
    histories = []
    for model in (ours, alone):
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=0.05)
        histories.append(fit(model, 4, callbacks=[schedule, plateau]))
    require_equal(ours, alone)
    require_same_history(*histories)
    rates = histories[0]["learning_rate"]
    assert rates[-1] < rates[0] * 0.9**3, rates


@in_test_all
def a_schedule_counts_steps_alike() -> None:
    ours, alone = twins(
        lambda: compiled(mlp(), keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.02, 2 * STEPS)))
    )
    fit(ours)
    fit(alone)
    require_equal(ours, alone)


def one_rank_writes_checkpoints_and_logs_and_all_read_them() -> None:
    path = folder()
    with strategy().scope():
        model = compiled(mlp(keras.layers.BatchNormalization()))
    callbacks = []
    if strategy().is_chief:
        best = {"monitor": "loss", "save_best_only": True, "save_weights_only": True}
        callbacks = [
            keras.callbacks.ModelCheckpoint(path / "best.weights.h5", **best),
            keras.callbacks.ModelCheckpoint(path / "{epoch}.keras"),
            keras.callbacks.CSVLogger(path / "log.csv"),
        ]
    fit(model, 2, callbacks=callbacks)
    coarse.barrier()
    assert sorted(file.name for file in path.iterdir()) == ["1.keras", "2.keras", "best.weights.h5", "log.csv"]
    wanted = model.get_weights()
    model.set_weights([weights * 0 for weights in wanted])
    model.load_weights(path / "best.weights.h5")
    require_close(model.get_weights(), wanted, rtol=0)
    coarse.barrier()


@in_test_all
def tensorboard_writes_on_one_rank_and_on_all() -> None:
    path = folder()
    for ranks in ([0], range(strategy().num_replicas_in_sync)):
        with strategy().scope():
            model = compiled(mlp())
        mine = path / f"{len(ranks)} of rank {coarse.rank()}"
        callbacks = [keras.callbacks.TensorBoard(mine, histogram_freq=1, update_freq="batch", profile_batch=0)]
        fit(model, 2, validation_data=rows(32, seed=9), callbacks=callbacks if coarse.rank() in ranks else [])
        require_same_everywhere(model.get_weights())
        assert mine.exists() == (coarse.rank() in ranks)
        if mine.exists():
            assert {"epoch_loss", "batch_loss"} <= tags_in(mine / "train")
    coarse.barrier()


def tags_in(folder: Path) -> set[str]:
    """The names of what TensorBoard's files of a folder hold."""
    records = tf.data.TFRecordDataset([str(file) for file in folder.glob("events.out.tfevents.*")])
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    return {value.tag for event in events for value in event.summary.value}


@in_test_all
def a_saved_model_goes_on_as_if_it_had_not_been() -> None:
    path = folder()
    ours, alone = twins(lambda: compiled(mlp(), keras.optimizers.Adam(0.01)))
    fit(ours, 1)
    fit(alone, 1)
    if strategy().is_chief:
        ours.save(path / "model.keras")
        ours.save_weights(path / "model.weights.h5")
    coarse.barrier()
    with strategy().scope():
        again = keras.models.load_model(path / "model.keras")
    by_itself = keras.models.load_model(path / "model.keras")  # outside of the scope: one process's model
    weights_alone = mlp()
    weights_alone.load_weights(path / "model.weights.h5")
    require_close(weights_alone.get_weights(), ours.get_weights(), rtol=0)
    with pushed(STEPS, again.trainable_variables):
        fit(again, 1)
    for model in (alone, by_itself):
        fit(model, 1)
        require_equal(again, model)


def training_goes_on_from_a_backup_that_one_rank_writes() -> None:
    path = folder() / "backup"

    class Interrupted(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    class Reading(keras.callbacks.BackupAndRestore):
        """Reads what rank 0 has written."""

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            pass

        def on_train_end(self, logs: object = None) -> None:
            pass

    kind = keras.callbacks.BackupAndRestore if strategy().is_chief else Reading
    with strategy().scope():
        first, second = (compiled(mlp(), keras.optimizers.Adam(0.01)) for _ in range(2))
    alone = compiled(mlp(), keras.optimizers.Adam(0.01))
    try:
        fit(first, 4, callbacks=[kind(str(path)), Interrupted()])
    except KeyboardInterrupt:
        coarse.barrier()
    with pushed(2 * STEPS, second.trainable_variables):
        fit(second, 4, callbacks=[kind(str(path))])
    fit(alone, 4)
    require_equal(second, alone)


@in_test_all
def a_checkpoint_of_tensorflow_holds_model_and_optimizer() -> None:
    path = folder()
    with strategy().scope():
        ours, again = (compiled(mlp(), keras.optimizers.Adam(0.01)) for _ in range(2))
        again.optimizer.build(again.trainable_variables)
    fit(ours, 1)
    prefix = str(path / "state")
    if strategy().is_chief:
        tf.train.Checkpoint(optimizer=ours.optimizer, layers=ours.layers).write(prefix)
    coarse.barrier()
    tf.train.Checkpoint(optimizer=again.optimizer, layers=again.layers).read(prefix).assert_existing_objects_matched()
    fit(ours, 1)
    fit(again, 1)
    require_equal(again, ours, rtol=1e-7)


def first_values_are_rank_0s_however_ranks_are_seeded() -> None:
    keras.utils.set_random_seed(10 + coarse.rank())

    class Late(keras.layers.Layer):
        """Builds its weights in the first call."""

        def call(self, rows: tf.Tensor) -> tf.Tensor:
            return self.inner(rows)

        def build(self, shape: tuple[int, ...]) -> None:
            self.inner = keras.layers.Dense(5)
            self.inner.build(shape)

    try:
        own = np.random.default_rng(coarse.rank()).normal(size=(3,)).astype("f4")
        with strategy().scope():
            layers = [keras.layers.Dense(20), keras.layers.Dropout(0.5), Late(), keras.layers.Dense(4)]
            model = compiled(keras.Sequential(layers), keras.optimizers.Adam(0.01))
            plain = tf.Variable(own)
            generator = keras.random.SeedGenerator(100 + coarse.rank())
        if strategy().num_replicas_in_sync > 1:
            assert len(set(everywhere(own))) > 1
        require_same_everywhere([plain.numpy(), np.asarray(generator.state)])
        fit(model, 1)  # builds it
        require_same_model_everywhere(model)
        assert len(model.weights) >= 6
    finally:
        keras.utils.set_random_seed(1)


@in_test_all
def one_rank_may_predict_by_a_copy_of_its_own() -> None:
    with strategy().scope():
        model = compiled(mlp())
    fit(model, 1)
    copy = mlp()
    copy.set_weights(model.get_weights())
    if strategy().is_chief:
        assert copy.predict(rows(BATCH)[0], verbose=0).shape == (BATCH, 4)
    fit(model, 1)
    require_same_everywhere(model.get_weights())


CLAIMS = [
    early_stopping_ends_all_ranks_in_the_same_epoch_with_the_same_best_weights,
    learning_rates_change_alike,
    a_schedule_counts_steps_alike,
    one_rank_writes_checkpoints_and_logs_and_all_read_them,
    tensorboard_writes_on_one_rank_and_on_all,
    a_saved_model_goes_on_as_if_it_had_not_been,
    training_goes_on_from_a_backup_that_one_rank_writes,
    a_checkpoint_of_tensorflow_holds_model_and_optimizer,
    first_values_are_rank_0s_however_ranks_are_seeded,
    one_rank_may_predict_by_a_copy_of_its_own,
]
