"""Sums of gradients over all workers, made before an optimizer looks at them.

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
from tf_strategy.agreement.variables import listed
from tf_strategy.extended import CoarseExtended
from tf_strategy.private_keras import trained_variables
from tf_strategy.private_names import is_strategy_variable, strays_written

Apply = Callable[..., Any]
_KINDS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
_MARK = "sums_first"
_warned: set[str] = set()
"""Subjects of which this process has warned."""


def sum_before_optimizers() -> None:
    """Let Keras' optimizers sum gradients first on a CoarseStrategy from now on; others stay unchanged.

    `apply_gradients` sums too, for optimizers whose class has an `apply` of its own.
    """
    for kind in _KINDS:
        if not hasattr(kind.apply, _MARK):
            kind.apply = _summed_first(kind.apply)
    if not hasattr(keras.optimizers.Optimizer.apply_gradients, _MARK):
        keras.optimizers.Optimizer.apply_gradients = _pairs_summed_first(keras.optimizers.Optimizer.apply_gradients)


def _summed_first(apply: Apply) -> Apply:
    @functools.wraps(apply)
    def applied(self: Any, grads: Any, trainable_variables: Any = None) -> Any:  # noqa: ANN401
        variables = None if trainable_variables is None else list(trainable_variables)
        return _with_sums(functools.partial(apply, self), self, list(grads), variables)

    setattr(applied, _MARK, True)
    return applied


def _pairs_summed_first(apply_gradients: Apply) -> Apply:
    @functools.wraps(apply_gradients)
    def applied(self: Any, grads_and_vars: Any) -> Any:  # noqa: ANN401
        def of_pairs(grads: list[Any], variables: list[Any]) -> Any:  # noqa: ANN401
            return apply_gradients(self, zip(grads, variables, strict=True))

        grads, variables = zip(*grads_and_vars, strict=True)
        return _with_sums(of_pairs, self, list(grads), list(variables))

    setattr(applied, _MARK, True)
    return applied


def _with_sums(apply: Apply, optimizer: Any, grads: list[Any], variables: list[Any] | None) -> Any:  # noqa: ANN401
    """Call `apply` with the summed gradients, or with `grads` if they are sums or the strategy is another."""
    extended = tf.distribute.get_strategy().extended
    trained = trained_variables(optimizer) if variables is None else variables
    if not isinstance(extended, CoarseExtended) or tf.distribute.in_cross_replica_context():
        _require_not_ours(optimizer, trained)
        _warn_of_training_alone(optimizer)
        return apply(grads, variables)
    if extended.gradients_are_summed:
        return apply(grads, variables)
    _warn_of_strays(optimizer)
    extended.equal_starts.require_of(optimizer, trained)
    grads = _summed(extended, optimizer, grads, trained if len(trained) == len(grads) else [None] * len(grads))
    with extended.summed_gradients():
        return apply(grads, variables)


def _summed(extended: CoarseExtended, optimizer: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Return the sums of gradients (None stays None), and assign rank 0's layer states on the way."""
    context = tf.distribute.get_replica_context()
    present = [number for number, gradient in enumerate(grads) if gradient is not None]
    if not present:
        return grads
    states = extended.layer_states.written(optimizer)
    mine = [state.value() if extended.is_chief else tf.zeros_like(state) for state in states]
    # States first, in the last bucket: in the first one, forward would count as backward (PassTimer).
    replaced = [getattr(variables[number], "overwrite_with_gradient", False) for number in present]
    exact = [*range(len(states)), *(len(states) + place for place, is_value in enumerate(replaced) if is_value)]
    sums = extended.sums_of_gradients(mine + [grads[number] for number in present], exact)
    for number, replaces, total in zip(present, replaced, sums[len(states) :], strict=True):
        grads[number] = total / context.num_replicas_in_sync if replaces else total
    for state, value in zip(states, sums[: len(states)], strict=True):
        state.assign(value)
    return grads


def _require_not_ours(optimizer: Any, trained: Sequence[Any]) -> None:  # noqa: ANN401
    """Raise ConfigError if variables of the strategy would be written without a sum."""
    ours = [is_strategy_variable(variable, CoarseExtended) for variable in [*trained, *optimizer.variables]]
    if not any(ours):
        return
    if trained and not any(ours[: len(trained)]):
        raise ConfigError(
            f"rank {coarse.rank()}: {optimizer.name}: the model was made outside strategy.scope(), its optimizer "
            "within; make both within"
        )
    raise ConfigError(
        f"rank {coarse.rank()}: {optimizer.name}: gradients of a CoarseStrategy's variables are applied outside "
        "strategy.run, where they are not summed over the workers; call optimizer.apply_gradients in the function that "
        "it is given"
    )


def _warn_of_training_alone(optimizer: Any) -> None:  # noqa: ANN401
    """Warn that a model not made for the strategy trains on each worker alone."""
    _warn_once(
        "alone",
        f"{optimizer.name} trains variables that were made outside strategy.scope(), which every worker trains for "
        "itself; unless that is meant, make and compile the model within the scope",
    )


def _warn_of_strays(optimizer: Any) -> None:  # noqa: ANN401
    """Warn that state which layers made outside the scope write (moving statistics, say) stays each worker's own."""
    strays = sorted(one.name.removesuffix(":0") for one in strays_written() if one.dtype.is_floating)
    if strays:
        _warn_once(
            "strays",
            f"{listed(strays)} were made outside strategy.scope(), and every worker writes its own in a step of "
            f"{optimizer.name}; make all layers and metrics of the model within the scope",
        )


def _warn_once(about: str, text: str) -> None:
    """Warn of a subject once in this process, if the job has several workers."""
    if about in _warned or not coarse.is_initialized() or coarse.size() == 1:
        return
    _warned.add(about)
    warnings.warn(f"rank {coarse.rank()}: {text}", stacklevel=2)
