"""Every worker's part of a dataset, and the end of the data, on which all workers agree."""

from collections.abc import Callable

import tensorflow as tf

from tf_strategy.operations import Operations
from tf_strategy.private_names import auto_sharded, distributed


def distribute(
    dataset: tf.data.Dataset, input_workers: object, strategy: tf.distribute.Strategy, operations: Operations
) -> tf.distribute.DistributedDataset:
    """A dataset of global batches split over the workers, as its AutoShardPolicy says."""
    part = auto_sharded(dataset, input_workers, strategy, operations.rank, operations.num_workers)
    return distributed(part, input_workers, strategy)


def from_function(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    input_workers: object,
    strategy: tf.distribute.Strategy,
    operations: Operations,
) -> tf.distribute.DistributedDataset:
    """The dataset that a function makes for this worker, as it is."""
    context = tf.distribute.InputContext(
        num_input_pipelines=operations.num_workers,
        input_pipeline_id=operations.rank,
        num_replicas_in_sync=operations.num_workers,
    )
    return distributed(dataset_fn(context), input_workers, strategy)
