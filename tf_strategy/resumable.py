"""Callback that continues `fit` after a restart where it stopped, with the same bits.

    model.fit(batches, epochs=10, callbacks=[..., Resumable()])          # coarse run --restarts 10 train.py

[Note: data again] An iterator gives the same elements again where it is made anew as often as before: a shuffled
dataset gives each iterator another order, and operations that draw begin with their seeds. So the number of the
iterator in use is kept, and how many batches were taken from it; when the job goes on, as many iterators are made, and
the last is made of the dataset behind so many of its elements. Generators of Python, and what keeps a state of its own
in a dataset, have no such place, and are refused.
"""

import json
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras

from coarse.errors import ConfigError
from coarse.faults.keeping import Framework, Keeping, keeping_of_job
from coarse.faults.memory import state_memory
from coarse.faults.parts import POSITION, Part, PlainPart
from coarse.faults.progress import Progress, tell, tell_for_all
from coarse.plain import ARRAYS, Plain
from coarse.session import current
from tf_strategy import private_keras
from tf_strategy.keeping import (
    VariablesPart,
    generators,
    kernels,
    refuse_another_keeper,
    seen_by_all,
    set_generators,
    set_seen_by_all,
)
from tf_strategy.private_names import PartDataset, draws_of, operation_types_of, stateful_draws, why_not_repeated
from tf_strategy.strategy import CoarseStrategy

_FRAMEWORK = Framework(
    tensors=ARRAYS, kernels=kernels, remedy="set the same weights and learning rates on every rank before fit"
)


_in_use: weakref.WeakSet[CoarseStrategy] = weakref.WeakSet()
"""Strategies with a `fit` that is committed."""


class Resumable(keras.callbacks.Callback):
    """Callback that commits one call of `fit`, on all workers, and continues it after a restart.

    A commit has the variables of the model (with the states of Keras' seed generators), the optimizer and the metrics.
    It also has the state of EarlyStopping, ReduceLROnPlateau, ModelCheckpoint and History, the state of callbacks with
    `state_dict()` and `load_state_dict()`, the position in `fit`, and the generators of random, numpy, TensorFlow and
    Keras. The script's code before `fit` runs again.

    Args:
        every: commit at each k-th batch's end (of steps_per_execution batches); the interval changes no bits.
        other_kernels: go on although TensorFlow, Keras, their threads or the processor are others than those of the
            commit, so that bits may differ.
    """

    def __init__(self, *, every: int = 1, other_kernels: bool = False) -> None:
        super().__init__()
        if every < 1:
            raise ConfigError(f"Resumable: every must be at least 1, got {every}")
        self._every, self._other_kernels = every, other_kernels
        self._keeping: Keeping | None = None
        self._calls = 0
        self._epoch = self._begin = self._taken = self._iterator = 0
        self._steps = 0
        """Steps of this epoch that are done."""
        self._logs: Mapping[str, Any] = {}
        self._back: dict[str, Any] | None = None
        """Position of `fit` at the restored commit, until `fit` has reached it again."""
        self._again: list[Callable[[], None]] = []
        """Functions that restore the kept state once more."""
        self._validations: int | None = None
        """Validation iterators made before the commit; None once as many are made again."""
        self._is_inspected = False

    # --- Keras' hooks

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Continue from the last commit.

        Raises:
            ConfigError: a second `fit`; a model of another strategy; settings, data or operations by which two runs
                differ in bits; BackupAndRestore beside this.
            CheckpointError: what was committed is of another model, with the first difference.
            StorageError: no version is whole with all workers; a folder of another script or number of workers.
        """
        strategy = self.model.distribute_strategy
        if not isinstance(strategy, CoarseStrategy):
            raise ConfigError(
                f"Resumable: the model was made in the scope of {type(strategy).__name__}; make it in that of a "
                "CoarseStrategy"
            )
        runtime = current()
        worker = runtime.client_index
        assert worker is not None
        self._progress = Progress(tell_for_all(worker))
        memory = state_memory(runtime.config, os.environ, worker, runtime.placement.num_clients)
        if memory is None:
            if worker == 0:
                tell("nothing keeps what Resumable commits; start by coarse run --restarts N, or set [faults]")
            return
        if strategy in _in_use:
            raise ConfigError("Resumable: a job commits one call of fit; give the callback to one")
        _in_use.add(strategy)
        self._fit = private_keras.fit_under_way()
        refuse_another_keeper(self._fit.callbacks.callbacks)
        self._require_repeatable_data(strategy)
        if self.model.optimizer is not None and not self.model.optimizer.built:
            with strategy.scope():
                self.model.optimizer.build(self.model.trainable_variables)
        self._keeping = keeping_of_job(
            runtime, self._parts(strategy), memory, _gathering(strategy), _FRAMEWORK, tell, every=self._every,
            other_kernels=self._other_kernels,
        )  # fmt: skip
        self._watch_callbacks()
        self._calls, _ = self._keeping.go_on()
        if self._back is not None:
            self._go_on(self._back)
            self._progress.on_restored(self._calls)
        else:
            self._again.clear()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the epoch."""
        self._epoch, self._steps = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count batches of the iterator in use."""
        if self._keeping is None:
            return
        if self._data.num_iterators != self._iterator:
            self._iterator, self._taken = self._data.num_iterators, 0
        self._begin = batch
        self._inspect_step()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the step's logs."""
        self._logs = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Let validation data continue, too."""
        data = private_keras.validation_data_of(self.model)
        if self._validations is not None and isinstance(data, PartDataset):
            made_here = data.num_iterators  # Keras reads a batch to build the model by, here as in each evaluation
            data.go_on(self._validations + made_here + 1, 0)
            self._validations = None

    # --- commits

    def _watch_callbacks(self) -> None:
        """Commit after all callbacks of a batch, and restore states after all callbacks of an epoch's begin."""
        callbacks = self._fit.callbacks
        begin_epoch, end_batch = callbacks.on_epoch_begin, callbacks.on_train_batch_end

        def on_epoch_begin(epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            begin_epoch(epoch, logs)
            if self._back is not None:
                self._arrive(self._back)

        def on_train_batch_end(batch: int, logs: Mapping[str, Any] | None = None) -> None:
            end_batch(batch, logs)
            self._commit(batch)

        callbacks.on_epoch_begin, callbacks.on_train_batch_end = on_epoch_begin, on_train_batch_end

    def _commit(self, batch: int) -> None:
        assert self._keeping is not None
        self._steps = batch + 1
        self._taken += batch + 1 - self._begin
        is_due = (self._calls + 1) % self._every == 0
        if is_due:
            self._keeping.commit(self._calls + 1, self._calls + 1)
        self._calls += 1
        if is_due:
            self._progress.on_commit(self._calls)

    def _parts(self, strategy: CoarseStrategy) -> dict[str, Part]:
        model, callbacks = self.model, self._fit.callbacks.callbacks
        parts: dict[str, Part] = {
            "model": VariablesPart("model", lambda: model.trainable_variables, is_alike=True),
            "states": VariablesPart("states", lambda: _others(model)),
            "optimizer": VariablesPart(
                "optimizer", lambda: [] if model.optimizer is None else model.optimizer.variables, is_alike=True
            ),
            "metrics": VariablesPart("metrics", lambda: model.metrics_variables),
            "callbacks": PlainPart(
                "callbacks", lambda: seen_by_all(callbacks), lambda kept: set_seen_by_all(callbacks, kept)
            ),
            POSITION: PlainPart("the place in fit", self._place, lambda kept: self._put_place(kept, strategy)),
        }
        return {name: _TwicePut(part, self._again) for name, part in parts.items()}

    # --- where fit is

    @property
    def _data(self) -> PartDataset:
        data = private_keras.data_of(self._fit.batches)
        assert isinstance(data, PartDataset)
        return data

    def _place(self) -> Plain:
        validation = private_keras.validation_data_of(self.model)
        return {
            "epoch": self._epoch,
            "steps": self._steps,
            "iterator": self._iterator,
            "taken": self._taken,
            "num_batches": private_keras.num_batches_known(self._fit.batches),
            "validations": validation.num_iterators if isinstance(validation, PartDataset) else 0,
            "is_over": bool(self.model.stop_training),
            "logs": dict(self._logs),
            "generators": generators(),
        }

    def _put_place(self, kept: Plain, strategy: CoarseStrategy) -> None:
        self._back = kept
        set_generators(kept["generators"], strategy)

    def _go_on(self, back: dict[str, Any]) -> None:
        """Let `fit` begin with the epoch of the commit, behind its steps."""
        model, batches = self.model, self._fit.batches
        private_keras.begin_at(model, back["epoch"])
        self._data.go_on(back["iterator"], back["taken"])
        self._iterator, self._taken = back["iterator"], back["taken"]
        self._validations = back["validations"]
        place = private_keras.PlaceInFit(back["steps"], back["taken"], back["num_batches"])
        private_keras.pass_over(batches, place, is_over=back["is_over"])

    def _arrive(self, back: dict[str, Any]) -> None:
        """Restore the commit's state again, after callbacks and `fit` have begun the epoch."""
        for put in self._again:
            put()
        self._again.clear()
        self._back = None
        self._steps = back["steps"]
        self.model.stop_training = back["is_over"]
        private_keras.begin_at(self.model, None)
        private_keras.give_logs(self.model, back["logs"])

    # --- refusals

    def _require_repeatable_data(self, strategy: CoarseStrategy) -> None:
        """Raise ConfigError if data do not repeat; see [Note: data again]."""
        batches, data = self._fit.batches, private_keras.data_of(self._fit.batches)
        if not isinstance(data, PartDataset):
            raise ConfigError(
                f"Resumable: fit was given a {type(data).__name__} that is not CoarseStrategy's; give it a tf.data."
                "Dataset, or what the strategy has distributed"
            )
        if private_keras.is_of_arrays(batches):
            draws = private_keras.draws_from_arrays(batches)
        else:
            if (why := why_not_repeated(data.source)) is not None:
                raise ConfigError(
                    f"Resumable: data of fit cannot be gone on with: {why}; make it of tf.data's own operations, with "
                    "stateless draws (tf.random.stateless_uniform by Dataset.counter or Dataset.random(seed)), and "
                    "draw within the model by Keras' layers"
                )
            draws = bool(draws_of(data.source)[0])
        if draws and not strategy.has_seed:
            raise ConfigError(
                "Resumable: data of fit are shuffled, and TensorFlow's seed was not set, so that each start shuffles "
                "anew; call keras.utils.set_random_seed(NUMBER) before CoarseStrategy()"
            )

    def _inspect_step(self) -> None:
        """Raise ConfigError before the first step if training draws from a state that cannot be kept."""
        if self._is_inspected:
            return
        self._is_inspected = True
        traced = private_keras.traced_step(self.model)
        if traced is not None and (draws := stateful_draws(operation_types_of(traced))):
            raise ConfigError(
                f"Resumable: the step of training draws by TensorFlow's stateful operation {draws[0]}, whose state "
                "cannot be kept; draw by keras.random with a SeedGenerator, or by tf.random.stateless_*"
            )


class _TwicePut:
    """Part that is restored at once, and again where the epoch begins."""

    def __init__(self, part: Part, again: list[Callable[[], None]]) -> None:
        self.take, self.wanted = part.take, part.wanted
        self._part, self._again = part, again

    def put(self, tree: Plain, tensors: list[Any]) -> None:
        """Restore the part now, and once more where the epoch begins."""
        self._part.put(tree, tensors)
        self._again.append(lambda: self._part.put(tree, tensors))


def _others(model: keras.Model) -> list[Any]:
    """Return the variables that are not trained, states of seed generators among them, each once."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [variable for variable in model.variables if id(variable) not in trained]


def _gathering(strategy: CoarseStrategy) -> Any:  # noqa: ANN401
    """Return a function that gathers values which JSON can hold from all workers."""

    def gather(value: Plain, name: str) -> list[Plain]:
        return [json.loads(blob) for blob in strategy.gather_bytes(json.dumps(value).encode())]

    return gather
