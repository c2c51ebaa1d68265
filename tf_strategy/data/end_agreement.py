"""Agreement of all workers, before each batch, on whether the data go on; see [Note: one end] in data.end.

[Note: nothing ahead] An iterator may be left at any step (steps_per_epoch, EarlyStopping, break), so nothing may be
under way between two batches: every question is answered before its batch is handed out, and none is asked before the
batch is asked for. That is why the questions stand behind all that fetches ahead.
"""

import threading
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from coarse.errors import ConfigError, DeadRankError, MismatchError, StallError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import URGENT, Descriptor
from coarse.session import current
from tf_strategy import failures
from tf_strategy.data.end import StepReport, goes_on, place_of
from tf_strategy.sums.places import told

_NUM_KEYS = 64
"""Number of keys that datasets use in turn. A step never reads more datasets."""
_EQUALLY_OFTEN = "all ranks must read a distributed dataset equally often"
_numbers = count()
_locks = [threading.Lock() for _ in range(_NUM_KEYS)]


class DataAgreement:
    """Common end of one dataset for all workers, which make their agreements in one order."""

    def __init__(self, allowed: int) -> None:
        self._number = next(_numbers)
        self._allowed = allowed
        runtime = current()
        assert runtime.client_index is not None
        self._client, self._rank = runtime.require_client(), runtime.client_index
        shape = (runtime.placement.num_clients, len(StepReport._fields))
        self._descriptor = Descriptor(
            f"tensorflow/data/{self._number % _NUM_KEYS}", int(DType.INT64), int(Op.SUM), shape, URGENT
        )

    def asked(self, part: tf.data.Dataset) -> tf.data.Dataset:
        """Return a worker's part that ends when all end, with empty batches once its own are over."""
        here = tf.data.Dataset.zip((tf.data.Dataset.from_tensors(1).repeat(), part))
        over = tf.data.Dataset.zip((tf.data.Dataset.from_tensors(0), _as_dataset(part.element_spec))).repeat()
        steps = here.concatenate(over).enumerate()
        going_on = steps.scan(np.int64(0), self._answer).take_while(lambda go_on, _: go_on)
        batches = going_on.scan(0, lambda none, answer: (none, answer[1]))  # map would be made to run ahead
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # see [Note: nothing ahead]
        if part.options().threading.private_threadpool_size is None:
            options.threading.private_threadpool_size = 0  # of TensorFlow's choice, apart from the graph's own threads
        return batches.with_options(options)

    def _answer(self, num_given: tf.Tensor, step_and_batch: tuple[Any, Any]) -> tuple[Any, Any]:
        step, (has_batch, batch) = step_and_batch
        num_given += tf.cast(has_batch, tf.int64)
        go_on = tf.numpy_function(self.ask, [step, num_given], tf.bool, stateful=True)
        return num_given, (tf.ensure_shape(go_on, []), batch)

    @failures.noted
    def ask(self, step: np.int64, num_given: np.int64) -> np.bool_:
        """Return whether any worker has a batch for a step.

        Raises:
            MismatchError: one ended earlier (on all workers).
            StallError: some have not come in time, which it names.
            DeadRankError: some have ended.
        """
        with _locks[self._number % _NUM_KEYS]:
            said = self._said_by_all(StepReport(self._number, int(step), int(num_given)))
        try:
            return np.bool_(goes_on(said, self._allowed))
        except MismatchError as error:
            raise MismatchError(f"rank {self._rank}: {error}") from None

    def _said_by_all(self, here: StepReport) -> list[StepReport]:
        table = self._client.host_array(self._descriptor)
        table[:] = 0
        table[self._rank] = here
        try:
            self._client.push_pull(self._descriptor, None, table).wait()
        except (StallError, DeadRankError) as error:
            raise told(error, self._rank, place_of(here), _EQUALLY_OFTEN) from None
        return [StepReport(*map(int, row)) for row in table]


def _as_dataset(spec: object) -> tf.data.Dataset:
    """Return a dataset of one empty batch."""
    return tf.data.Dataset.from_tensors(empty_batch(spec))


def empty_batch(spec: Any) -> Any:  # noqa: ANN401
    """Return a batch of no rows, nested as `spec`, the type specification of batches; unknown extents are 0.

    A worker whose data are over runs it while others finish theirs.

    Raises:
        ConfigError: a component of a kind that has no rows.
    """
    return tf.nest.map_structure(_empty, spec)


def _empty(spec: tf.TypeSpec) -> Any:  # noqa: ANN401
    if isinstance(spec, type(tf.type_spec_from_value(None))):
        return None
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec) or spec.shape.rank in (None, 0):
        raise ConfigError(
            f"a worker whose files end earlier needs a batch of no rows, and there is none of {spec}; batch the "
            "dataset into tensors, or set auto_shard_policy to DATA"
        )
    extents = [0, *(extent or 0 for extent in spec.shape[1:])]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(extents)], tf.int64), tf.zeros([0], spec.dtype), extents)
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [0, *extents[1 + spec.ragged_rank :]]
        no_rows = tf.zeros([1], spec.row_splits_dtype)
        return tf.RaggedTensor.from_nested_row_splits(tf.zeros(inner, spec.dtype), [no_rows] * spec.ragged_rank)
    return tf.zeros(extents, spec.dtype)
