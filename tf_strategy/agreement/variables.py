"""Variables equal on all ranks: where training starts, and where each rank writes its own (rank 0 counts).

[Note: equal starts] First values are rank 0's. Later ranks may read different files, or one of them may set weights or
a learning rate alone, and they would then train unrelated models.

[Note: layer states] Layers write some variables in forward, each worker by its own part of the batch: moving statistics
above all. Keras 3 has no aggregation for such variables, and with MirroredStrategy the first replica's count. Here rank
0's count too: they travel with the next sum of gradients, so that all ranks evaluate and save equal values.

[Note: row states] The `states` of a stateful layer have a row for each row of the worker's own part of a batch. They
stay each worker's, as a replica's stay its own under MirroredStrategy.

[Note: traced unequally often] A rank may trace a function anew where others do not, for a smaller batch. So what
travels with a sum must follow from the program alone. It is what the function that asks for the sum has written so far
in this trace, and what those around it had written when it was traced first, which is in one place on all ranks.
"""

import gc
import itertools
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from coarse.errors import MismatchError
from tf_strategy.private_keras import keras_method, writes_by_design, writes_row_state
from tf_strategy.private_names import (
    SyncOnReadVariable,
    innermost_function,
    local_value,
    on_replica_write,
    written_in_traced_functions,
)
from tf_strategy.sums.operations import Operations

Digests = Mapping[int, int]
"""Digest of each variable's values, by the variable's number."""
States = dict[int, tf.Variable]
"""Variables by order of creation."""


class EqualStarts:
    """Strategy variables that must be equal on all ranks, and optimizers that have begun with equal ones.

    [Note: equal starts] has the reason.
    """

    def __init__(self, operations: Operations, is_in_optimizer: Callable[[], bool]) -> None:
        self._operations = operations
        self._is_in_optimizer = is_in_optimizer
        self._numbers = itertools.count()
        self._watched: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_warned = False

    def watch(self, variable: tf.Variable) -> None:
        """Remember a variable of the strategy, unless each rank may have its own: a counter or generator state.

        It is forgotten when a replica writes it by itself, as layers write moving statistics.
        """
        number = next(self._numbers)  # all ranks create variables in one order
        is_alone = variable.aggregation == tf.VariableAggregation.NONE
        if isinstance(variable, SyncOnReadVariable) or (is_alone and variable.dtype.is_integer):
            return
        self._watched[number] = variable
        if is_alone:
            on_replica_write(variable, lambda written: self._note(number, written))

    def require(self) -> None:
        """Return if all watched variables are equal on all ranks.

        Keras' evaluate and predict do not train, and skip the check.

        Raises:
            MismatchError: values differ (on all ranks).
        """
        if keras_method() not in ("evaluate", "predict"):
            self._require_equal(())

    def require_of(self, optimizer: Any, variables: Sequence[Any]) -> None:  # noqa: ANN401
        """Return if the watched variables, the trained ones and the optimizer's state are equal on all ranks.

        The check runs once for each optimizer.

        Raises:
            MismatchError: values differ (on all ranks).
        """
        if optimizer not in self._begun:
            self._require_equal([*variables, *optimizer.variables])
            self._begun.add(optimizer)

    def _require_equal(self, others: Sequence[Any]) -> None:
        """Compare one digest of all variables first, and each variable's own only if that differs."""
        operations = self._operations
        if operations.num_workers == 1:
            return
        with tf.init_scope():
            table = _table(self._variables(others))
            found = operations.gather(tf.constant([zlib.crc32(table.tobytes())], tf.int64))
            if len({whole.numpy().tobytes() for whole in found}) == 1:
                return
            gc.collect()  # models that are gone and uncollected are not trained
            variables = self._variables(others)
            by_rank = [dict(rows.numpy().tolist()) for rows in operations.gather(tf.constant(_table(variables)))]
        names = [variables[number].name.removesuffix(":0") for number in differing(by_rank)]
        if names:
            raise MismatchError(f"rank {operations.rank}: {told(names)}")

    def _variables(self, others: Sequence[Any]) -> dict[int, tf.Variable]:
        """Return this rank's local variables by number: watched ones from 0, others below 0."""
        found = {number: own_variable(variable) for number, variable in sorted(self._watched.items())}
        known = {id(variable) for variable in found.values()}
        rest = enumerate(own_variable(variable) for variable in others)
        found |= {-1 - number: variable for number, variable in rest if id(variable) not in known}
        return {number: variable for number, variable in found.items() if _has_value(variable)}

    def _note(self, number: int, written: tf.Variable) -> None:
        """Forget a variable that a replica has written, since ranks may write unequal values.

        It stays if an optimizer writes it, equally on all ranks, or if Keras writes a trained one by design.
        """
        if self._is_in_optimizer() or (written.trainable and writes_by_design()):
            return
        self._watched.pop(number, None)
        if written.trainable and not self._has_warned and self._operations.num_workers > 1:
            self._has_warned = True
            warnings.warn(
                f"rank {self._operations.rank}: strategy.run writes the trainable variable "
                f"{written.name.removesuffix(':0')!r} outside of an optimizer, and no operation combines what workers "
                "write; call an optimizer's apply_gradients, or write what "
                "tf.distribute.get_replica_context().all_reduce returns; a variable that each worker has of its own is "
                "made with trainable=False",
                stacklevel=2,
            )


def differing(by_rank: Sequence[Digests]) -> list[int]:
    """Return, in order, the numbers of the variables that all ranks have and whose digests differ."""
    first, *others = by_rank
    common = set(first).intersection(*others)
    return sorted(number for number in common if any(digests[number] != first[number] for digests in others))


def told(names: Sequence[str]) -> str:
    """Return an error text which says that these variables differ."""
    return (
        f"the values of {listed(names)} differ between ranks, which would train on apart; load the same files, and set "
        "the same weights and learning rates, on every rank"
    )


def listed(names: Sequence[str]) -> str:
    """Return at most three names in quotes, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(map(repr, names[:3]))}{more}"


def _table(variables: Mapping[int, tf.Variable]) -> np.ndarray:
    """Return each variable's number and digest, (n, 2) int64.

    The digest is a CRC, which is four times as fast as blake2b.
    """
    digests = [(number, _digest(values_of(variable))) for number, variable in variables.items()]
    return np.array(digests, np.int64).reshape(-1, 2)


def values_of(variable: tf.Variable) -> np.ndarray:
    """Return a variable's values without making it an input of a function that is being traced."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy()


def _digest(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def own_variable(variable: Any) -> Any:  # noqa: ANN401
    """Return this process's local variable behind a variable of Keras or of the strategy."""
    value = getattr(variable, "value", variable)
    return local_value(variable if callable(value) else value)


def _has_value(variable: Any) -> bool:  # noqa: ANN401
    """Return whether a variable has a value.

    One that is being made in the function under trace has none yet, and will have rank 0's.
    """
    return isinstance(variable, tf.Variable) and bool(variable.is_initialized())


class LayerStates:
    """Variables that this process has written by itself: floating, not trained, and without an aggregation.

    [Note: layer states] and [Note: row states] say how they are treated.
    """

    def __init__(self, is_in_optimizer: Callable[[], bool]) -> None:
        self._is_in_optimizer = is_in_optimizer
        self._numbers = itertools.count()
        self._in_functions: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()
        """Variables that a tf.function writes, by order of creation."""
        self._eagerly: States = {}
        """Variables that were written outside of tf.functions since the last sum of gradients."""
        self._around: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, States]]
        self._around = weakref.WeakKeyDictionary()
        """Variables that the surrounding functions had written when a function was first traced, by optimizer and
        function."""

    def watch(self, variable: tf.Variable) -> None:
        """Watch a variable of the strategy for writes by a replica alone."""
        is_alone = variable.aggregation == tf.VariableAggregation.NONE
        if not is_alone or variable.trainable or not variable.dtype.is_floating:
            return
        number = next(self._numbers)  # all ranks create variables in one order

        def note(written: tf.Variable) -> None:
            if not self._is_in_optimizer() and not writes_row_state(written):
                (self._eagerly if tf.executing_eagerly() else self._in_functions)[number] = written

        on_replica_write(variable, note)

    def written(self, optimizer: Any) -> list[tf.Variable]:  # noqa: ANN401
        """Return the variables, in order of creation, that travel with the sum that `optimizer` requests.

        In a trace these are the variables that its functions have written so far; eagerly, those written since the last
        sum.
        """
        if tf.executing_eagerly():
            found, self._eagerly = self._eagerly, {}
        else:
            found = self._traced(optimizer)
        return [found[number] for number in sorted(found)]

    def _traced(self, optimizer: Any) -> States:  # noqa: ANN401
        """Return the variables written in this trace and around it; see [Note: traced unequally often]."""
        known = dict(self._in_functions)
        around, within = ({n: known[n] for n in numbers} for numbers in written_in_traced_functions(known))
        function = innermost_function()
        if function is not None:
            by_function = self._around.setdefault(optimizer, weakref.WeakKeyDictionary())
            around = by_function.setdefault(function, around)
        return around | within


class FirstReplicaVariable(SyncOnReadVariable):
    """Variable of each worker's own that reads as rank 0's outside of replicas.

    TensorFlow's SyncOnReadVariable gives the reader's own value there.
    """

    def value(self) -> tf.Tensor:
        """Return the replica's own value within `strategy.run`, rank 0's elsewhere."""
        return tf.convert_to_tensor(self._get())

    def _get_cross_replica(self) -> Any:  # noqa: ANN401
        strategy = self.distribute_strategy
        with strategy.scope():
            (own,) = self.values
            first = strategy.extended.broadcast_to(own.value(), destinations=own)
            return strategy.experimental_local_results(first)[0]


def read_from_rank_0(variable: tf.Variable) -> tf.Variable:
    """Return a FirstReplicaVariable if only the first replica's value counts, else the variable itself."""
    is_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    if not is_first or not isinstance(variable, SyncOnReadVariable):
        return variable
    return FirstReplicaVariable(variable.distribute_strategy, variable.values, variable.aggregation)
