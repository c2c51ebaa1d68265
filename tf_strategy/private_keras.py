"""The one file that knows Keras' private names; tests pin each to the versions supported."""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.saving import saving_lib

from tf_strategy.private_names import callers, frames, local_value

_ROW_STATE = "rnn_state"
"""The name that keras.layers.RNN gives the variables of its states."""


def keras_counts() -> tuple[int | None, int | None] | None:
    """How many batches Keras takes a dataset for, and the steps_per_epoch it was given, while it distributes it."""
    for name, owner in callers():
        if name == "__init__" and isinstance(owner, TFEpochIterator):
            return owner.data_adapter.num_batches, owner.steps_per_epoch
    return None


def keras_method() -> str | None:
    """Which of Keras' fit, evaluate and predict has called, if any; of one within another the inner."""
    found = (name for name, owner in callers() if isinstance(owner, TensorFlowTrainer))
    return next((name for name in found if name in ("fit", "evaluate", "predict")), None)


def writes_by_design() -> bool:
    """Whether a variable is written by a layer of Keras, in forward, or is one of Keras' that is not trained now."""
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
    """What an optimizer was built for; nothing before that."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def is_keras_predict_step(function: object) -> bool:
    """Whether `model.predict` runs a function, whose rows it takes for those of all replicas."""
    name = f"{TensorFlowTrainer.make_predict_function.__qualname__}.<locals>.one_step_on_data"
    return getattr(function, "__qualname__", None) == name


def is_keras_logged_step(function: object) -> bool:
    """Whether Keras runs a function for its logs, in `fit` and `evaluate`, and on a batch."""
    name = f"{TensorFlowTrainer._make_function.__qualname__}.<locals>.one_step_on_data"
    return any(
        frame.f_code.co_qualname == name and frame.f_locals["step_function"] is function for frame in frames()
    )


def on_data_without_a_batch(refuse: Callable[[keras.Model], None]) -> None:
    """Call `refuse` with the model where data end before Keras has had the first batch, with which it builds it."""
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
    """From now on saving makes no variables of a strategy, whose first values all ranks would have to ask for.

    Keras makes an optimizer to see which attributes any has that need not be saved, and forgets them at once. So this
    is done in a thread of its own, which is in no scope, and once for each type.
    """
    found = saving_lib.get_attr_skipset

    @functools.cache
    def found_alone(obj_type: str) -> Any:  # noqa: ANN401
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(found, obj_type).result()

    saving_lib.get_attr_skipset = functools.wraps(found)(found_alone)


def has_backup(callback: keras.callbacks.BackupAndRestore) -> bool:
    """Whether training would go on from a backup."""
    return Path(callback._weights_path).exists()


def path_to_save(
    callback: keras.callbacks.ModelCheckpoint, epoch: int, batch: int | None, logs: Mapping[str, Any] | None
) -> str | None:
    """Where a ModelCheckpoint would save now, and None where it would not; it notes what is best so far."""
    path = str(callback._get_file_path(epoch, batch, logs))
    return path if callback._should_save_model(epoch, batch, logs, path) else None


def set_summaries(callback: keras.callbacks.TensorBoard, *, written: bool) -> None:
    """Have a TensorBoard write its files, or none."""
    if not written:
        callback.embeddings_freq = 0
        callback._init_profile_batch(0)
    callback._summary_module = None if written else _Unwritten()


class _Unwritten:
    """`tf.summary` whose files are none."""

    def create_file_writer(self, *_: object, **__: object) -> tf.summary.SummaryWriter:
        """A writer that writes nothing."""
        return tf.summary.create_noop_writer()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(tf.summary, name)
