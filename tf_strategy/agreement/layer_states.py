"""What layers write in forward, each worker by its own part of the batch: moving statistics above all.

[Note: layer states] Keras 3 has no aggregation for such variables, and with MirroredStrategy the first replica's count.
Here rank 0's count too: they travel with the next sum of gradients, so that all ranks evaluate and save alike.

[Note: traced unequally often] A rank may trace a function anew where others do not, for a smaller batch. So what
travels with a sum must follow from the program alone. It is what the function that asks for the sum has written so far
in this trace, and what those around it had written when it was traced first, which is in one place on all ranks.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_strategy.private_names import innermost_function, on_replica_write, written_in_traced_functions

States = dict[int, tf.Variable]
"""Variables by order of creation."""


class LayerStates:
    """Variables that this process has written by itself: floating, not trained, and without an aggregation."""

    def __init__(self, is_in_optimizer: Callable[[], bool]) -> None:
        self._is_in_optimizer = is_in_optimizer
        self._numbers = itertools.count()
        self._in_functions: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()
        """By order of creation what is written in some tf.function."""
        self._eagerly: States = {}
        """What has been written outside of them since the last sum of gradients."""
        self._around: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, States]]
        self._around = weakref.WeakKeyDictionary()
        """By optimizer and function what those around it had written when it was first traced."""

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

    def written(self, optimizer: Any) -> list[tf.Variable]:  # noqa: ANN401
        """What travels with a sum that `optimizer` asks for here, in order of creation: what was written before.

        In a trace that is what its functions write; eagerly it is all since the last sum.
        """
        if tf.executing_eagerly():
            found, self._eagerly = self._eagerly, {}
        else:
            found = self._traced(optimizer)
        return [found[number] for number in sorted(found)]

    def _traced(self, optimizer: Any) -> States:  # noqa: ANN401
        """See [Note: traced unequally often]."""
        known = dict(self._in_functions)
        around, within = ({n: known[n] for n in numbers} for numbers in written_in_traced_functions(known))
        function = innermost_function()
        if function is not None:
            by_function = self._around.setdefault(optimizer, weakref.WeakKeyDictionary())
            around = by_function.setdefault(function, around)
        return around | within
