"""Whether all ranks begin with equal values, asked once of each optimizer, before its first step.

First values are rank 0's; but ranks may read different files since, or one of them set weights alone, and would then
train models that have nothing to do with one another.
"""

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from coarse.errors import MismatchError
from tf_strategy.operations import Operations
from tf_strategy.private_names import local_value

_DIGEST_BYTES = 8


class EqualStarts:
    """The optimizers whose variables were found equal."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def require(self, optimizer: Any, variables: Sequence[Any]) -> None:  # noqa: ANN401
        """Return if what `optimizer` trains, and its own state, are equal on all ranks; once found so, at once.

        Raises:
            MismatchError: a variable's values differ (on all ranks).
        """
        if optimizer in self._known:
            return
        with tf.init_scope():
            started = [one for one in map(_local, [*variables, *optimizer.variables]) if _has_value(one)]
            digests = np.array([_digest(one.numpy()) for one in started], np.int64)
            by_rank = [found.numpy() for found in self._operations.gather(tf.constant(digests))]
        if not all(np.array_equal(found, by_rank[0]) for found in by_rank):
            difference = difference_of([one.name.removesuffix(":0") for one in started], by_rank)
            raise MismatchError(f"rank {self._operations.rank}: {difference}")
        self._known.add(optimizer)


def difference_of(names: Sequence[str], by_rank: Sequence[np.ndarray]) -> str:
    """Which variables differ between ranks, in words; `by_rank` has a digest, int64, of each."""
    counts = [len(digests) for digests in by_rank]
    if len(set(counts)) > 1:
        return f"ranks train different numbers of variables: {counts} on ranks {list(range(len(counts)))}"
    differing = [name for name, row in zip(names, np.stack(by_rank, axis=1), strict=True) if len(set(row)) > 1]
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return (
        f"before the first step the values of {', '.join(map(repr, differing[:3]))}{more} differ between ranks; load "
        "the same files and set the same weights on every rank"
    )


def _local(variable: Any) -> Any:  # noqa: ANN401
    """This process's own variable behind Keras' or the strategy's."""
    value = getattr(variable, "value", variable)
    return local_value(variable if callable(value) else value)


def _has_value(variable: Any) -> bool:  # noqa: ANN401
    """False where a variable is being made in the function that is traced, and will have rank 0's value."""
    return isinstance(variable, tf.Variable) and bool(variable.is_initialized())


def _digest(array: np.ndarray) -> int:
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "little", signed=True)
