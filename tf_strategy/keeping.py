"""Parts of a Keras training whose state is kept: variables, callbacks, generators, and the place in `fit`."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.parts import Item, Taken, require_same_tensors
from coarse.generators import host_generators, set_host_generators
from coarse.plain import Plain
from tf_strategy.agreement.variables import own_variable, values_of
from tf_strategy.private_keras import global_seeds, make_global_seeds, seen_by, set_seen
from tf_strategy.private_names import SyncOnReadVariable, eager_draws, global_generator, has_replica_values
from tf_strategy.strategy import CoarseStrategy


class VariablesPart:
    """Variables of Keras, each with this worker's own values."""

    def __init__(self, name: str, variables: Callable[[], Sequence[Any]], *, is_alike: bool = False) -> None:
        """Name the part; `is_alike` if mirrored variables are equal on all workers after each step."""
        self._name, self._variables, self._is_alike = name, variables, is_alike

    def take(self) -> Taken:
        """Return the state of the variables as it is now."""
        items = [
            Item(f"{self._name}/{path_of(each)}", values_of(own_variable(each)), self._is_alike and _is_mirrored(each))
            for each in self._variables()
        ]
        return Taken([[item.name, *_kind_of(item.tensor)] for item in items], items)

    def wanted(self, tree: Plain) -> list[np.ndarray]:
        """Return host arrays of the types and shapes in the kept tree."""
        items = self.take().items
        require_same_tensors([(item.name, _kind_of(item.tensor)) for item in items], tree)
        return [np.empty_like(item.tensor) for item in items]

    def put(self, tree: Plain, tensors: list[np.ndarray]) -> None:
        """Assign the kept values to the variables."""
        for variable, values in zip(self._variables(), tensors, strict=True):
            own_variable(variable).assign(values)


def path_of(variable: object) -> str:
    """Return a variable's readable name, which says where it is in a model."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", variable))


def _is_mirrored(variable: object) -> bool:
    value = getattr(variable, "value", variable)
    return has_replica_values(value) and not isinstance(value, SyncOnReadVariable)


def _kind_of(array: np.ndarray) -> list[Any]:
    return [array.dtype.name, list(array.shape)]


# --- callbacks


def seen_by_all(callbacks: Sequence[keras.callbacks.Callback]) -> Plain:
    """Return the state of callbacks by place: Keras' that count, and others that have `state_dict()`."""
    found = {}
    for place, callback in enumerate(callbacks):
        seen = callback.state_dict() if _keeps_itself(callback) else seen_by(callback)
        if seen is not None:
            found[place] = [type(callback).__name__, seen]
    return found


def set_seen_by_all(callbacks: Sequence[keras.callbacks.Callback], kept: Plain) -> None:
    """Restore the state of callbacks.

    Raises:
        CheckpointError: they are others.
    """
    own = {place: kind for place, (kind, _) in seen_by_all(callbacks).items()}
    then = {place: kind for place, (kind, _) in kept.items()}
    if own != then:
        raise CheckpointError(
            f"the states that are kept have the callbacks {list(then.values())}, and fit was given "
            f"{list(own.values())}; give the same callbacks in the same order"
        )
    for place, (_, seen) in kept.items():
        if _keeps_itself(callbacks[place]):
            callbacks[place].load_state_dict(seen)
        else:
            set_seen(callbacks[place], seen)


def _keeps_itself(callback: object) -> bool:
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def refuse_another_keeper(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raise ConfigError if BackupAndRestore would let `fit` begin at another epoch."""
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
        raise ConfigError(
            "Resumable and BackupAndRestore both say with which epoch fit begins; leave BackupAndRestore out while "
            "something keeps what Resumable commits"
        )


# --- generators


def generators() -> Plain:
    """Return the states of the process's shared generators: random, numpy, TensorFlow and Keras."""
    draws, stateful, seeds = eager_draws(), global_generator(), global_seeds()
    return {
        **host_generators(),
        "eager": None if draws is None else draws.getstate(),
        "tensorflow": None if stateful is None else values_of(own_variable(stateful.state)),
        "keras": None if seeds is None else values_of(own_variable(seeds.state)),
    }


def set_generators(kept: Plain, strategy: CoarseStrategy) -> None:
    """Restore the states that `generators` returned."""
    if kept["keras"] is not None:
        with strategy.scope():
            own_variable(make_global_seeds().state).assign(kept["keras"])
    if kept["tensorflow"] is not None:
        with strategy.scope():
            own_variable(tf.random.get_global_generator().state).assign(kept["tensorflow"])
    if (draws := eager_draws()) is not None and kept["eager"] is not None:
        draws.setstate(kept["eager"])
    set_host_generators(kept)


# --- kernels


@cache
def kernels() -> str:
    """Return the name of TensorFlow's kernels here, on which bits depend in addition to the script."""
    num_threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    has_onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1")
    devices = sorted({device.device_type for device in tf.config.list_logical_devices()})
    return (
        f"tensorflow {tf.__version__} and keras {keras.__version__} with {num_threads} threads, oneDNN {has_onednn}, "
        f"{_capability()}, {' and '.join(devices)}"
    )


def _capability() -> str:
    """Return the widest vectors that the processor has, as Linux reports them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith(("flags", "Features"))), [])
    except OSError:
        flags = []
    return next((flag for flag in ("avx512f", "avx2", "avx", "sve", "asimd") if flag in flags), "no wide vectors")
