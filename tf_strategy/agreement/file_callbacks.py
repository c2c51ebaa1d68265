"""Choice of the rank that writes the files of Keras' callbacks.

[Note: one writer] All ranks run one program, and all have a ModelCheckpoint of one path. So at the begin of a `fit` the
ranks state which paths their callbacks write, and of ranks that name the same path only the first writes to it. A
callback that one rank has alone, or with a path of its own, writes as usual. If a save reads variables that all ranks
must read at once, the others save too, to a folder that is thrown away.
"""

import functools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from coarse.errors import MismatchError
from tf_strategy.private_keras import (
    has_backup,
    keras_method,
    let_one_rank_save_within_a_scope,
    path_to_save,
    set_summaries,
)
from tf_strategy.private_names import SyncOnReadVariable
from tf_strategy.sums.operations import Operations
from tf_strategy.sums.places import fingerprint_of

Callbacks = keras.callbacks
_PATHS: dict[type, str] = {
    Callbacks.ModelCheckpoint: "filepath",
    Callbacks.BackupAndRestore: "backup_dir",
    Callbacks.TensorBoard: "log_dir",
    Callbacks.CSVLogger: "filename",
}
"""Attribute in which each kind of callback keeps the path that it writes."""
_silent: weakref.WeakSet[keras.callbacks.Callback] = weakref.WeakSet()
"""Callbacks of this rank for which another rank writes."""
_in_turn: weakref.WeakSet[keras.callbacks.Callback] = weakref.WeakSet()
"""Callbacks that all ranks have. The writing rank restores such a callback first, and the others read after it."""


_awaited: weakref.WeakSet[keras.callbacks.CallbackList] = weakref.WeakSet()
"""Callback lists in which some ranks write for others. All their ranks leave `fit` once the files are whole."""


class Said(NamedTuple):
    """Statement of one rank about a callback that writes."""

    path: int
    """Fingerprint of the path."""
    is_backup: int
    """1 if training goes on from a backup that may be at the path, else 0."""


def is_silent(said: Sequence[Sequence[Said]], rank: int, path: int) -> bool:
    """Return whether a lower rank writes to this path, according to the statements of all ranks."""
    return any(one.path == path for others in said[:rank] for one in others)


def require_one_beginning(found: Sequence[Mapping[int, int]]) -> None:
    """Return if ranks that name one path agree on whether it has a backup.

    Raises:
        MismatchError: some would go on from it, and others begin anew.
    """
    for path in {path for by_path in found for path in by_path}:
        with_it, without = ([r for r, by_path in enumerate(found) if by_path.get(path) == has] for has in (1, 0))
        if with_it and without:
            raise MismatchError(
                f"BackupAndRestore: ranks {with_it} find a backup in their backup_dir and ranks {without} find none, "
                "so that they would go on from different epochs; use a folder that all nodes share, or remove what "
                "is left of it"
            )


def write_on_one_rank(strategy: tf.distribute.Strategy, operations: Operations) -> None:
    """Let one rank alone write each path and draw progress bars from now on; see [Note: one writer]."""
    if operations.num_workers == 1:
        return
    if operations.rank != 0:
        keras.utils.disable_interactive_logging()
    let_one_rank_save_within_a_scope()
    _before(Callbacks.CallbackList, "set_model", functools.partial(_arrange, strategy, operations))
    for name in ("on_train_begin", "on_epoch_end", "on_train_end"):
        _where_silent(Callbacks.CSVLogger, name, lambda *_, **__: None)
    _where_silent(Callbacks.ModelCheckpoint, "_save_model", _checkpoint_unwritten)
    _where_silent(Callbacks.BackupAndRestore, "_save_model", lambda callback: _take_part(callback, "0.weights.h5"))
    _where_silent(Callbacks.BackupAndRestore, "on_train_end", lambda *_, **__: None)
    _read_in_turn(operations)
    _end_together(operations)


def _arrange(strategy: tf.distribute.Strategy, operations: Operations, callbacks: Any, model: Any) -> None:  # noqa: ANN401
    """Agree with all ranks on who writes what, when `fit` is about to use these callbacks."""
    if model is None or model.distribute_strategy is not strategy or keras_method() != "fit":
        return
    mine = {callback: _said(callback) for callback in callbacks.callbacks if _path_of(callback) is not None}
    said = [[Said(*row) for row in rows] for rows in _pairs_of_all(operations, list(mine.values()))]
    if any(one.is_backup for rows in said for one in rows):
        # Not before now: a rank that lags behind has ended its last fit by now, and removed that one's backup.
        found = [(one.path, has_backup(callback)) for callback, one in mine.items() if one.is_backup]
        try:
            require_one_beginning([dict(rows) for rows in _pairs_of_all(operations, found)])
        except MismatchError as error:
            raise MismatchError(f"rank {operations.rank}: {error}") from None
    for callback, (path, _) in mine.items():
        silent = is_silent(said, operations.rank, path)
        (_silent.add if silent else _silent.discard)(callback)
        everywhere = all(any(one.path == path for one in rows) for rows in said)
        (_in_turn.add if everywhere else _in_turn.discard)(callback)
        if isinstance(callback, Callbacks.TensorBoard):
            set_summaries(callback, written=not silent)
    paths = [path for rows in said for path in {one.path for one in rows}]
    (_awaited.add if len(set(paths)) < len(paths) else _awaited.discard)(callbacks)


def _pairs_of_all(operations: Operations, pairs: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Return each rank's pairs of numbers, in order of rank."""
    rows = operations.gather(tf.reshape(tf.constant(pairs, tf.int64), [-1, 2]))
    return [[(int(first), int(second)) for first, second in of_rank] for of_rank in rows]


def _said(callback: keras.callbacks.Callback) -> Said:
    path = str(_path_of(callback))
    whole = path if "://" in path else str(Path(path).expanduser().absolute())
    return Said(fingerprint_of(whole.encode()), int(isinstance(callback, Callbacks.BackupAndRestore)))


def _path_of(callback: keras.callbacks.Callback) -> object | None:
    return next((getattr(callback, name) for kind, name in _PATHS.items() if isinstance(callback, kind)), None)


def _checkpoint_unwritten(callback: keras.callbacks.ModelCheckpoint, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
    """Decide as the writing rank does, and update the best value so far."""
    path = path_to_save(callback, *args, **kwargs)
    if path is not None:
        _take_part(callback, Path(path).name, weights_only=callback.save_weights_only)


def _take_part(callback: keras.callbacks.Callback, name: str, *, weights_only: bool = True) -> None:
    """Save to a temporary folder if the writing rank would otherwise wait for this one."""
    model = callback.model
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    if not any(isinstance(getattr(variable, "value", variable), SyncOnReadVariable) for variable in variables):
        return
    with tempfile.TemporaryDirectory(prefix="coarse") as folder:
        (model.save_weights if weights_only else model.save)(str(Path(folder) / name))


def _read_in_turn(operations: Operations) -> None:
    """Let silent ranks read a backup only after the writing rank has restored from it.

    BackupAndRestore may mend a backup that was cut off before it reads it.
    """
    restore = Callbacks.BackupAndRestore.on_train_begin

    @functools.wraps(restore)
    def restored(self: keras.callbacks.BackupAndRestore, logs: Any = None) -> None:  # noqa: ANN401
        if self in _in_turn and self in _silent:
            operations.gather(tf.constant([1]))
        restore(self, logs)
        if self in _in_turn and self not in _silent:
            operations.gather(tf.constant([1]))

    Callbacks.BackupAndRestore.on_train_begin = restored


def _end_together(operations: Operations) -> None:
    """Let ranks leave `fit` only when all files are whole, so that any rank can read a checkpoint."""
    end = Callbacks.CallbackList.on_train_end

    @functools.wraps(end)
    def ended(self: keras.callbacks.CallbackList, logs: Any = None) -> None:  # noqa: ANN401
        end(self, logs)
        if self in _awaited:
            operations.gather(tf.constant([1]))

    Callbacks.CallbackList.on_train_end = ended


def _before(kind: type, name: str, first: Callable[..., None]) -> None:
    method = getattr(kind, name)

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        first(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    setattr(kind, name, called)


def _where_silent(kind: type, name: str, instead: Callable[..., None]) -> None:
    """Replace a method for callbacks for which another rank writes."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return (instead if self in _silent else method)(self, *args, **kwargs)

    setattr(kind, name, called)
