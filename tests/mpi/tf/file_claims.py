"""Callbacks that name one path on all ranks: one rank writes, all may read, and what is printed is printed once."""

import contextlib
import io
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.errors import MismatchError
from tests.mpi.tf.callback_claims import folder
from tests.mpi.tf.training import (
    compiled,
    everywhere,
    fit,
    mlp,
    require_equal,
    require_same_everywhere,
    strategy,
)
from tests.support.claims import in_test_all, raises
from tf_strategy.agreement import file_callbacks


def made(**settings: object) -> keras.Model:
    """A model of the strategy."""
    with strategy().scope():
        return compiled(mlp(), keras.optimizers.Adam(0.01), **settings)


@contextlib.contextmanager
def saves_counted() -> Iterator[list[str]]:
    """Within, the paths that this rank saves to."""
    saved: list[str] = []
    save, save_weights = keras.Model.save, keras.Model.save_weights

    def noted(method: object) -> object:
        def called(self: keras.Model, filepath: object, *args: object, **kwargs: object) -> object:
            saved.append(str(filepath))
            return method(self, filepath, *args, **kwargs)

        return called

    keras.Model.save, keras.Model.save_weights = noted(save), noted(save_weights)
    try:
        yield saved
    finally:
        keras.Model.save, keras.Model.save_weights = save, save_weights


def rank_0_alone_writes_what_all_ranks_name() -> None:
    path = folder()
    callbacks = [
        keras.callbacks.ModelCheckpoint(path / "deep" / "{epoch}.keras"),
        keras.callbacks.ModelCheckpoint(path / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True),
        keras.callbacks.CSVLogger(path / "log.csv"),
        keras.callbacks.TensorBoard(path / "logs", histogram_freq=1, update_freq="batch"),
        keras.callbacks.BackupAndRestore(path / "backup", delete_checkpoint=False),
    ]
    model = made()
    with saves_counted() as saved:
        fit(model, 2, callbacks=callbacks)
    assert bool(saved) == strategy().is_chief, saved
    assert sorted(file.name for file in (path / "deep").iterdir()) == ["1.keras", "2.keras"]
    assert len((path / "log.csv").read_text().splitlines()) == 3
    assert len(list((path / "logs" / "train").glob("events.*"))) == 1
    assert (path / "backup" / "training_metadata.json").exists()
    wanted = model.get_weights()
    model.load_weights(path / "best.weights.h5")
    assert all(np.array_equal(one, other) for one, other in zip(model.get_weights(), wanted, strict=True))
    assert len(everywhere(callbacks[1].best)[0]) == 8
    require_same_everywhere([[callbacks[1].best]])  # it goes on being decided on every rank
    coarse.barrier()


def a_rank_with_a_path_of_its_own_or_alone_writes_it() -> None:
    path = folder()
    callbacks = [keras.callbacks.CSVLogger(path / f"{coarse.rank()}.csv")]
    if coarse.rank() == coarse.size() - 1:
        callbacks.append(keras.callbacks.ModelCheckpoint(path / "last.keras"))
    fit(made(), 1, callbacks=callbacks)
    coarse.barrier()
    own = [f"{rank}.csv" for rank in range(coarse.size())]
    assert sorted(file.name for file in path.iterdir()) == [*own, "last.keras"]
    coarse.barrier()


@in_test_all
def training_goes_on_from_a_backup_that_all_ranks_name() -> None:
    path = folder() / "backup"

    class Interrupted(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    first, second, whole = made(), made(), made()
    with contextlib.suppress(KeyboardInterrupt):
        fit(first, 4, callbacks=[keras.callbacks.BackupAndRestore(path), Interrupted()])
    assert path.exists()
    resumed = keras.callbacks.BackupAndRestore(path)
    history = fit(second, 4, callbacks=[resumed])
    assert len(history["loss"]) == 2
    fit(whole, 4)
    require_equal(second, whole)


@in_test_all
def a_rank_that_is_late_to_end_a_fit_has_removed_its_backup_when_the_next_begins() -> None:
    path = folder() / "backup"

    class Late(keras.callbacks.Callback):
        def on_train_end(self, logs: object = None) -> None:
            if strategy().is_chief:
                time.sleep(0.5)

    for _ in range(3):
        assert len(fit(made(), 2, callbacks=[Late(), keras.callbacks.BackupAndRestore(path)])["loss"]) == 2


@in_test_all
def one_rank_saves_within_the_scope_too() -> None:
    path = folder()
    with strategy().scope():
        model = compiled(mlp(), keras.optimizers.Adam(0.01))
        fit(model, 1, callbacks=[keras.callbacks.ModelCheckpoint(path / "fit.keras")])
        if strategy().is_chief:
            model.save(path / "alone.keras")
        coarse.barrier()
        for name in ("fit", "alone"):
            require_same_everywhere(keras.saving.load_model(path / f"{name}.keras").get_weights())
    coarse.barrier()


def what_is_written_last_is_whole_for_all_ranks_when_fit_ends() -> None:
    path = folder() / "last.weights.h5"

    class Late(keras.callbacks.ModelCheckpoint):
        def _save_model(self, *args: object, **kwargs: object) -> None:
            time.sleep(0.5 * strategy().is_chief)
            super()._save_model(*args, **kwargs)

    model = made()
    fit(model, 1, callbacks=[Late(path, save_weights_only=True)])
    model.load_weights(path)
    coarse.barrier()


def ranks_that_would_go_on_from_different_epochs_are_refused() -> None:
    path = folder() / "backup"
    found = file_callbacks.has_backup
    file_callbacks.has_backup = lambda callback: coarse.rank() == 1
    try:
        with raises(MismatchError, "ranks [1] find a backup in their backup_dir", "use a folder that all nodes share"):
            fit(made(), 1, callbacks=[keras.callbacks.BackupAndRestore(path)])
    finally:
        file_callbacks.has_backup = found
    fit(made(), 1, callbacks=[keras.callbacks.BackupAndRestore(path)])


class Counts(keras.layers.Layer):
    """Counts the rows of all workers."""

    def build(self, shape: object) -> None:
        self.rows = keras.Variable(0.0, trainable=False, aggregation="sum", synchronization="on_read", name="rows")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.rows.assign(self.rows.value + tf.cast(tf.shape(x)[0], tf.float32))
        return x


def all_ranks_take_part_where_a_save_reads_from_all() -> None:
    path = folder()
    with strategy().scope():
        model = compiled(mlp(Counts()))
    callbacks = [
        keras.callbacks.ModelCheckpoint(path / "{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(path / "backup", delete_checkpoint=False),
    ]
    fit(model, 2, callbacks=callbacks)
    coarse.barrier()
    rows = float(np.asarray(model.layers[1].rows))
    assert rows >= 2 * 80, rows
    saved = mlp(Counts())
    saved.load_weights(path / "2.weights.h5")
    assert float(np.asarray(saved.layers[1].rows)) == rows
    coarse.barrier()


@in_test_all
def bars_and_summaries_are_printed_once() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        model = made()
        model.summary()
        fit(model, 2, verbose=1, callbacks=[keras.callbacks.ModelCheckpoint(folder() / "a.keras", verbose=1)])
        model.evaluate(np.ones([8, 16]), np.ones([8, 4]))
        model.predict(np.ones([8, 16]))
    words = ("Total params", "Epoch 2/2", "saving model to", "loss")
    assert [word in printed.getvalue() for word in words] == [strategy().is_chief] * len(words), printed.getvalue()
    assert strategy().is_chief or printed.getvalue() == ""
    coarse.barrier()


CLAIMS = [
    rank_0_alone_writes_what_all_ranks_name,
    a_rank_with_a_path_of_its_own_or_alone_writes_it,
    training_goes_on_from_a_backup_that_all_ranks_name,
    a_rank_that_is_late_to_end_a_fit_has_removed_its_backup_when_the_next_begins,
    one_rank_saves_within_the_scope_too,
    what_is_written_last_is_whole_for_all_ranks_when_fit_ends,
    ranks_that_would_go_on_from_different_epochs_are_refused,
    all_ranks_take_part_where_a_save_reads_from_all,
    bars_and_summaries_are_printed_once,
]
