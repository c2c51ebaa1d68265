"""What layers write in forward, each worker by its own part of the batch: moving statistics above all.

[Note: layer states] Keras 3 has no aggregation for such variables, and with MirroredStrategy the first replica's count.
Here rank 0's count too: they travel with the next sum of gradients, so that all ranks evaluate and save alike.
"""

import itertools
import weakref
from collections.abc import Callable

import tensorflow as tf

from tf_strategy.private_names import on_replica_write, variables_of_traced_functions


class LayerStates:
    """Variables that this process has written by itself: floating, not trained, and without an aggregation."""

    def __init__(self, is_in_optimizer: Callable[[], bool]) -> None:
        self._is_in_optimizer = is_in_optimizer
        self._numbers = itertools.count()
        self._in_functions: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()
        """By order of creation what has been written in a tf.function."""
        self._eagerly: dict[int, tf.Variable] = {}
        """What has been written outside of them since the last sum of gradients."""

    def watch(self, variable: tf.Variable) -> None:
        """Notice when a variable of the strategy is written by a replica alone."""
        is_alone = variable.aggregation == tf.VariableAggregation.NONE
        if not is_alone or variable.trainable or not variable.dtype.is_floating:
            return
        number = next(self._numbers)  # all ranks create variables in one order

        def note(written: tf.Variable) -> None:
            if not self._is_in_optimizer():
                (self._eagerly if tf.executing_eagerly() else self._in_functions)[number] = written

        on_replica_write(variable, note)

    def written(self) -> list[tf.Variable]:
        """Those written before here, in this tf.function and those around it, or eagerly; in order of creation."""
        if tf.executing_eagerly():
            eagerly, self._eagerly = self._eagerly, {}
            return [eagerly[number] for number in sorted(eagerly)]
        traced = variables_of_traced_functions()
        known = sorted(self._in_functions.items())
        return [variable for _, variable in known if any(variable is one for one in traced)]
