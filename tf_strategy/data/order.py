"""The order of a dataset's rows: what ranks draw it from, made alike, and as numbers that tell whether it is."""

import os
import random

import numpy as np
import tensorflow as tf

from tf_strategy.data.end import shared_seed
from tf_strategy.private_names import draws_of
from tf_strategy.sums.operations import Operations
from tf_strategy.sums.places import fingerprint_of

_NO_SEED = 87654321
"""What TensorFlow seeds an operation with that has a seed of its own, where there is no global one."""


def share_seed(operations: Operations) -> None:
    """Let all ranks draw alike, who must shuffle alike to split alike.

    They get one global seed of TensorFlow, unless the program has set it. Python's generator, and numpy's, is seeded
    anew on all where its states differ.
    """
    seed, is_set = _global_seed()
    proposed = int.from_bytes(os.urandom(4), "little") % _NO_SEED
    here = [seed, int(is_set), proposed, _python_state(), _numpy_state()]
    said = [[int(number) for number in row[0]] for row in operations.gather(tf.constant([here], tf.int64))]
    drawn = said[0][2]
    if not is_set:
        tf.random.set_seed(shared_seed([row[0] if row[1] else None for row in said], drawn))
    if len({row[3] for row in said}) > 1:
        random.seed(drawn)
    if len({row[4] for row in said}) > 1:
        np.random.seed(drawn)


def order_of(dataset: tf.data.Dataset) -> tuple[int, int, int, int]:
    """What the order of a dataset's rows depends on, as the last fields of Part."""
    seeds, is_from_python = draws_of(dataset)
    states = (_python_state(), _numpy_state()) if is_from_python else (0, 0)
    return _global_seed()[0], fingerprint_of(repr(seeds).encode()), *states


def _global_seed() -> tuple[int, bool]:
    """TensorFlow's global seed, and whether it was set."""
    seed = int(tf.compat.v1.get_seed(0)[0])
    return seed, seed != _NO_SEED


def _python_state() -> int:
    return fingerprint_of(repr(random.getstate()).encode())


def _numpy_state() -> int:
    parts = tf.nest.flatten(np.random.get_state(legacy=False))
    return fingerprint_of(
        b"".join(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() for part in parts)
    )
