"""Every worker's part of a dataset, and the end of the data, on which all workers agree."""

import warnings
from collections.abc import Callable

import keras
import tensorflow as tf

from coarse.errors import ConfigError, MismatchError
from tf_strategy.data.end import (
    INFINITE,
    NOT_BY_KERAS,
    UNKNOWN,
    Part,
    Split,
    allowed_behind,
    different_orders,
    must_ask,
)
from tf_strategy.data.end_agreement import DataAgreement
from tf_strategy.data.files import are_files_enough
from tf_strategy.data.lent_memory import owned
from tf_strategy.data.order import order_of
from tf_strategy.private_keras import keras_counts, keras_method, on_data_without_a_batch
from tf_strategy.private_names import auto_sharded, distributed, may_read_files
from tf_strategy.sums.operations import Operations

Policy = tf.data.experimental.AutoShardPolicy
_MODERATE = b"\x08\x02"
"""CardinalityOptions of compute level CARDINALITY_COMPUTE_MODERATE, which looks into flat_map, of which Keras makes
the datasets of its arrays."""


def distribute(
    dataset: tf.data.Dataset, input_workers: object, strategy: tf.distribute.Strategy, operations: Operations
) -> tf.distribute.DistributedDataset:
    """A dataset of global batches split over the workers, as its AutoShardPolicy says; one that is split stays so.

    By DATA every global batch is cut into one part for each worker, in order of rank. AUTO splits by files where there
    are enough for all workers, and by DATA otherwise and for `model.predict`, whose rows are wanted in order.

    Raises:
        ConfigError: what came is no dataset, is distributed within a tf.function, or is to be split by files that it
            does not read.
        MismatchError: the ranks' data cannot be used together (on all ranks).
    """
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    _require_dataset(dataset, operations.rank)

    def by(policy: object) -> tf.data.Dataset:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        given = dataset.with_options(options)
        return auto_sharded(given, input_workers, strategy, operations.rank, operations.num_workers)

    split, part = _split(dataset, by, operations)
    whole = num_batches_of(dataset)
    num_batches = whole if split is Split.BY_BATCHES or whole == INFINITE else num_batches_of(part)
    return _agreed(part, split, num_batches, input_workers, strategy, operations)


def from_function(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    input_workers: object,
    strategy: tf.distribute.Strategy,
    operations: Operations,
) -> tf.distribute.DistributedDataset:
    """The dataset that a function makes for this worker, as it is; raises as `distribute` does."""
    context = tf.distribute.InputContext(
        num_input_pipelines=operations.num_workers,
        input_pipeline_id=operations.rank,
        num_replicas_in_sync=operations.num_workers,
    )
    part = dataset_fn(context)
    _require_dataset(part, operations.rank)
    return _agreed(part, Split.AS_GIVEN, num_batches_of(part), input_workers, strategy, operations)


def num_batches_of(dataset: tf.data.Dataset) -> int:
    """How many elements an epoch has, as far as it can be told without reading; see INFINITE and UNKNOWN."""
    variant = tf.data.experimental.to_variant(dataset)
    return int(tf.raw_ops.DatasetCardinality(input_dataset=variant, cardinality_options=_MODERATE))


def _split(
    dataset: tf.data.Dataset, by: Callable[[object], tf.data.Dataset], operations: Operations
) -> tuple[Split, tf.data.Dataset]:
    """How a dataset's policy splits it, and this worker's part."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (Policy.OFF, Policy.HINT):
        return Split.AS_GIVEN, by(policy)
    if policy == Policy.DATA or (policy == Policy.AUTO and keras_method() == "predict"):
        return Split.BY_BATCHES, by(Policy.DATA)
    part = _by_files(dataset, by, operations)
    if part is not None:
        return Split.BY_FILES, part
    if policy == Policy.AUTO:
        return Split.BY_BATCHES, by(Policy.DATA)
    raise ConfigError(
        f"rank {operations.rank}: auto_shard_policy is FILE, and the dataset reads no files, or fewer than the "
        f"{operations.num_workers} workers; set it to DATA"
    )


def _by_files(
    dataset: tf.data.Dataset, by: Callable[[object], tf.data.Dataset], operations: Operations
) -> tf.data.Dataset | None:
    """This worker's part by files; None if there are no files, or too few for any of the workers.

    Where none are read TensorFlow is not asked: it would log errors of what is none.
    """
    if not may_read_files(dataset):
        return None
    try:
        part = by(Policy.FILE)
    except tf.errors.NotFoundError:
        return None
    is_enough = are_files_enough(dataset, part, operations.num_workers)
    return part if all(bool(said[0]) for said in operations.gather(tf.constant([is_enough]))) else None


def _agreed(
    part: tf.data.Dataset,
    split: Split,
    num_batches: int,
    input_workers: object,
    strategy: tf.distribute.Strategy,
    operations: Operations,
) -> tf.distribute.DistributedDataset:
    """A worker's part that ends where all others do."""
    here = Part(int(split), num_batches, *_counted_by_keras(), *order_of(part))
    rows = operations.gather(tf.constant([here], tf.int64))
    parts = [Part(*(int(number) for number in row[0])) for row in rows]
    for warning in different_orders(parts):
        warnings.warn(f"rank {operations.rank}: {warning}", stacklevel=2)
    try:
        asks = must_ask(parts)
    except MismatchError as error:
        raise MismatchError(f"rank {operations.rank}: {error}") from None
    part = owned(part)
    if asks:
        part = DataAgreement(allowed_behind(split)).asked(part)
    return distributed(part, input_workers, strategy, UNKNOWN if asks else num_batches)


def _counted_by_keras() -> tuple[int, int]:
    """The numbers of batches and steps by which Keras ends an epoch."""
    counts = keras_counts()
    if counts is None:
        return NOT_BY_KERAS, NOT_BY_KERAS
    num_batches, steps = (UNKNOWN if count is None else int(count) for count in counts)
    return num_batches, steps


def _require_dataset(dataset: object, rank: int) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigError(f"rank {rank}: a tf.data.Dataset was wanted, {type(dataset).__name__} came")
    if not tf.executing_eagerly():
        raise ConfigError(f"rank {rank}: a dataset was distributed within a tf.function; distribute it outside")


def refuse_data_without_a_batch(strategy: tf.distribute.Strategy, operations: Operations) -> None:
    """From now on Keras tells so, for models of this strategy, where it would let out a StopIteration without a text.

    Raises there:
        ConfigError: data of `fit` or `evaluate` end before their first batch (on all ranks).
    """

    def refuse(model: keras.Model) -> None:
        if model.distribute_strategy is strategy:
            raise ConfigError(
                f"rank {operations.rank}: {keras_method()} was given data without a single batch, and so were all "
                "other ranks; see whether its files were found, a filter leaves nothing, or a generator was used up"
            )

    on_data_without_a_batch(refuse)
