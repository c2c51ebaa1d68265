"""Gradients are summed over all workers before an optimizer looks at them.

[Note: summed first] Keras' optimizers sum gradients over replicas at the very end: after each replica has clipped its
own, has looked for overflows in its own and accumulated its own. So clipping differs from that of one process, and a
loss scale ends ranks' programs differently. Here `apply` begins with the sum, and the rest is what one process does.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

import coarse
from coarse.errors import ConfigError
from tf_strategy.extended import CoarseExtended
from tf_strategy.private_names import is_strategy_variable

Apply = Callable[..., Any]
_KINDS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
_MARK = "sums_first"
_has_warned = False


def sum_before_optimizers() -> None:
    """From now on Keras' optimizers sum gradients first on a CoarseStrategy; elsewhere nothing changes."""
    for kind in _KINDS:
        if not hasattr(kind.apply, _MARK):
            kind.apply = _summed_first(kind.apply)


def _summed_first(apply: Apply) -> Apply:
    @functools.wraps(apply)
    def applied(self: Any, grads: Any, trainable_variables: Any = None) -> Any:  # noqa: ANN401
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        extended = tf.distribute.get_strategy().extended
        if not isinstance(extended, CoarseExtended) or tf.distribute.in_cross_replica_context():
            _require_not_ours(self, variables or [])
            _warn_of_training_alone(self)
            return apply(self, grads, variables)
        if extended.gradients_are_summed:
            return apply(self, grads, variables)
        extended.equal_starts.require(self, variables or [])
        grads = _summed(extended, grads, variables or [None] * len(grads))
        with extended.summed_gradients():
            return apply(self, grads, variables)

    setattr(applied, _MARK, True)
    return applied


def _summed(extended: CoarseExtended, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    """The sums of gradients (None stays None), and with them rank 0's state of layers."""
    context = tf.distribute.get_replica_context()
    present = [number for number, gradient in enumerate(grads) if gradient is not None]
    if not present:
        return grads
    states = extended.layer_states.written()
    mine = [state.value() if extended.is_chief else tf.zeros_like(state) for state in states]
    # States first, in the last bucket: in the first one, forward would count as backward (PassTimer).
    sums = extended.sums_of_gradients(mine + [grads[number] for number in present])
    for number, total in zip(present, sums[len(states) :], strict=True):
        replaces = getattr(variables[number], "overwrite_with_gradient", False)
        grads[number] = total / context.num_replicas_in_sync if replaces else total
    for state, value in zip(states, sums[: len(states)], strict=True):
        state.assign(value)
    return grads


def _require_not_ours(optimizer: Any, variables: Sequence[Any]) -> None:  # noqa: ANN401
    if any(is_strategy_variable(variable, CoarseExtended) for variable in [*variables, *optimizer.variables]):
        raise ConfigError(
            f"{optimizer.name}: gradients of a CoarseStrategy's variables are applied outside strategy.run, where "
            "nobody sums them over the workers; call optimizer.apply_gradients in the function that it is given"
        )


def _warn_of_training_alone(optimizer: Any) -> None:  # noqa: ANN401
    """A model that was not made for the strategy trains as if there were none; once it is said so."""
    global _has_warned
    if _has_warned or not coarse.is_initialized() or coarse.size() == 1:
        return
    _has_warned = True
    warnings.warn(
        f"rank {coarse.rank()}: {optimizer.name} trains variables that were made outside strategy.scope(), which every "
        "worker trains for itself; unless that is meant, make and compile the model within the scope",
        stacklevel=2,
    )
