"""Private names of Keras, which only this file knows; tests pin each to the supported versions."""

import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.random.seed_generator import global_seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tf_strategy.private_names import callers, frames, local_value

Callbacks = keras.callbacks
_ROW_STATE = "rnn_state"
"""Name that keras.layers.RNN gives the variables of its states."""


def keras_counts() -> tuple[int | None, int | None] | None:
    """Return Keras' number of batches and its steps_per_epoch while it distributes a dataset, else None."""
    for name, owner in callers():
        if name == "__init__" and isinstance(owner, TFEpochIterator):
            return owner.data_adapter.num_batches, owner.steps_per_epoch
    return None


def keras_method() -> str | None:
    """Return which of Keras' fit, evaluate and predict is the innermost caller, or None."""
    found = (name for name, owner in callers() if isinstance(owner, TensorFlowTrainer))
    return next((name for name in found if name in ("fit", "evaluate", "predict")), None)


def writes_by_design() -> bool:
    """Return whether a Keras layer writes a variable in forward, or an untrained Keras variable writes itself."""
    return any(
        (name == "__call__" and isinstance(owner, keras.layers.Layer))
        or (isinstance(owner, keras.Variable) and not owner.trainable)
        for name, owner in callers()
    )


def makes_row_state() -> bool:
    """Return whether the variable that is being made is a state of one of Keras' layers with `stateful=True`.

    Keras makes such a variable at once, or later if the layer was built while nothing may be made.
    """
    return any(isinstance(owner, keras.Variable) and owner.name == _ROW_STATE for _, owner in callers())


def writes_row_state(variable: tf.Variable) -> bool:
    """Return whether a stateful layer that is being called has this variable among its `states`."""
    return any(
        local_value(state.value) is variable
        for _, owner in callers()
        if isinstance(owner, keras.layers.Layer) and getattr(owner, "stateful", False)
        for state in tf.nest.flatten(getattr(owner, "states", None))
        if isinstance(state, keras.Variable)
    )


def trained_variables(optimizer: keras.optimizers.Optimizer) -> list[object]:
    """Return the variables that an optimizer was built for; none before that."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def is_keras_predict_step(function: object) -> bool:
    """Return whether `model.predict` runs this function, whose rows it takes for those of all replicas."""
    name = f"{TensorFlowTrainer.make_predict_function.__qualname__}.<locals>.one_step_on_data"
    return getattr(function, "__qualname__", None) == name


def is_keras_logged_step(function: object) -> bool:
    """Return whether Keras runs this function for its logs, in `fit` and `evaluate` and on a batch."""
    name = f"{TensorFlowTrainer._make_function.__qualname__}.<locals>.one_step_on_data"
    return any(
        frame.f_code.co_qualname == name and frame.f_locals["step_function"] is function for frame in frames()
    )


def on_data_without_a_batch(refuse: Callable[[keras.Model], None]) -> None:
    """Call `refuse` with the model if data end before the first batch, with which Keras builds the model."""
    build = TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        try:
            return build(self, *args, **kwargs)
        except StopIteration:
            refuse(self)
            raise

    TensorFlowTrainer._maybe_symbolic_build = built


def let_one_rank_save_within_a_scope() -> None:
    """Let saving make no variables of a strategy from now on: all ranks would have to ask for first values.

    Keras makes an optimizer, and forgets it at once, to find attributes that need not be saved. So this happens once
    for each type, in a thread that is in no scope.
    """
    found = saving_lib.get_attr_skipset

    @functools.cache
    def found_alone(obj_type: str) -> Any:  # noqa: ANN401
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(found, obj_type).result()

    saving_lib.get_attr_skipset = functools.wraps(found)(found_alone)


class Fit(NamedTuple):
    """Running call of `fit`, seen from one of its callbacks."""

    batches: TFEpochIterator
    callbacks: keras.callbacks.CallbackList
    num_epochs: int


def fit_under_way() -> Fit:
    """Return the running call of `fit`."""
    for frame in frames():
        if frame.f_code.co_name == "fit" and isinstance(frame.f_locals.get("self"), TensorFlowTrainer):
            found = frame.f_locals
            return Fit(found["epoch_iterator"], found["callbacks"], found["epochs"])
    raise AssertionError("no fit is under way")


def data_of(batches: TFEpochIterator) -> object:
    """Return the distributed dataset of an iterator over epochs."""
    return batches._distributed_dataset


def validation_data_of(model: keras.Model) -> object | None:
    """Return the distributed dataset of validation within `fit`, once it was used."""
    batches = getattr(model, "_eval_epoch_iterator", None)
    return None if batches is None else batches._distributed_dataset


def is_of_arrays(batches: TFEpochIterator) -> bool:
    """Return whether data were given as arrays, which Keras shuffles by itself."""
    return isinstance(batches.data_adapter, ArrayDataAdapter)


def draws_from_arrays(batches: TFEpochIterator) -> bool:
    """Return whether Keras shuffles arrays."""
    return is_of_arrays(batches) and bool(batches.data_adapter._shuffle)


def begin_at(model: keras.Model, epoch: int | None) -> None:
    """Let `fit` begin with an epoch, or as its arguments say if `epoch` is None."""
    model._initial_epoch = epoch


class PlaceInFit(NamedTuple):
    """Position of `fit` within its data."""

    steps: int
    """Steps of this epoch that are done."""
    taken: int
    """Batches taken from the iterator in use."""
    num_batches: int | None
    """Batches of an epoch, or None before Keras knows them."""


def num_batches_known(batches: TFEpochIterator) -> int | None:
    """Return the number of batches of an epoch, or None before Keras knows it."""
    found: int | None = batches._num_batches
    return found


def has_own_steps(batches: TFEpochIterator) -> bool:
    """Return whether `fit` was given steps_per_epoch, so that one iterator goes on from epoch to epoch."""
    return batches.steps_per_epoch is not None


def pass_over(batches: TFEpochIterator, place: PlaceInFit, *, is_over: bool) -> None:
    """Let the next epoch skip the steps that are done; the next iterator skips their batches.

    Args:
        batches: the iterator over epochs of the running `fit`.
        place: the position that `fit` had reached, with the steps to skip.
        is_over: True if the rest of the epoch is skipped, too.
    """
    enumerate_epoch = batches._enumerate_iterator
    batches._num_batches = place.num_batches
    if has_own_steps(batches):
        batches._current_iterator = iter(batches._distributed_dataset)
        batches._steps_seen = place.taken - place.steps

    def rest() -> Iterator[tuple[int, int, Any]]:
        batches._enumerate_iterator = enumerate_epoch
        for begin, end, iterator in enumerate_epoch():
            if end >= place.steps and not is_over:
                yield begin, end, iterator

    batches._enumerate_iterator = rest


def traced_step(model: keras.Model) -> object | None:
    """Return the tf.function that `fit` is about to call, traced for its data; None if it runs eagerly."""
    function = model.train_function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if model.run_eagerly or "multi_step_on_iterator" not in cells:
        return None
    step: Any = cells["multi_step_on_iterator"].cell_contents
    iterator = next(frame for frame in frames() if frame.f_code.co_name == "fit").f_locals["iterator"]
    step.get_concrete_function(iterator)
    return step


def give_logs(model: keras.Model, logs: Mapping[str, Any]) -> None:
    """Let the epoch that ends next report these logs if it has made no step."""
    logs_of = model._get_metrics_result_or_logs

    def found(own: Mapping[str, Any]) -> Any:  # noqa: ANN401
        model._get_metrics_result_or_logs = logs_of
        return logs_of(own or dict(logs))

    model._get_metrics_result_or_logs = found


_KEPT: dict[type, tuple[str, ...]] = {
    Callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    Callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    Callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    Callbacks.History: ("epoch", "history"),
}
"""Attributes in which Keras' callbacks keep their state."""


def seen_by(callback: keras.callbacks.Callback) -> dict[str, Any] | None:
    """Return the state of one of Keras' callbacks, or None for one that has none."""
    names = next((names for kind, names in _KEPT.items() if isinstance(callback, kind)), None)
    return None if names is None else {name: getattr(callback, name) for name in names if hasattr(callback, name)}


def set_seen(callback: keras.callbacks.Callback, seen: Mapping[str, Any]) -> None:
    """Restore the state of one of Keras' callbacks."""
    for name, value in seen.items():
        setattr(callback, name, value)


def global_seeds() -> keras.random.SeedGenerator | None:
    """Return the generator from which Keras draws without a seed, or None before its first use."""
    found: keras.random.SeedGenerator | None = global_state.get_global_attribute("global_seed_generator")
    return found


def make_global_seeds() -> keras.random.SeedGenerator:
    """Return the generator from which Keras draws without a seed; make it if there is none."""
    return global_seed_generator()


def has_backup(callback: keras.callbacks.BackupAndRestore) -> bool:
    """Return whether there is a backup from which training would go on."""
    return Path(callback._weights_path).exists()


def path_to_save(
    callback: keras.callbacks.ModelCheckpoint, epoch: int, batch: int | None, logs: Mapping[str, Any] | None
) -> str | None:
    """Return the path to which a ModelCheckpoint would save now, or None; update its best value so far."""
    path = str(callback._get_file_path(epoch, batch, logs))
    return path if callback._should_save_model(epoch, batch, logs, path) else None


def set_summaries(callback: keras.callbacks.TensorBoard, *, written: bool) -> None:
    """Let a TensorBoard write its files, or none."""
    if not written:
        callback.embeddings_freq = 0
        callback._init_profile_batch(0)
    callback._summary_module = None if written else _Unwritten()


class _Unwritten:
    """Stand-in for `tf.summary` that writes no files."""

    def create_file_writer(self, *_: object, **__: object) -> tf.summary.SummaryWriter:
        """Return a writer that writes nothing."""
        return tf.summary.create_noop_writer()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(tf.summary, name)
