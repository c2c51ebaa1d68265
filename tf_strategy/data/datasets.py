"""Each worker's part of a dataset: its rows or files, their order, their memory and their end.

[Note: names alone] TensorFlow notices that there are too few files when the first batch is read, which runs all that a
program does to its rows. But the split is a rewrite of the dataset's graph: each node that shares out names stands in
it, marked as one that must not come out empty, and what stands before such a node can be counted by itself.

[Note: lent memory] TensorFlow takes what a function of Python returns to a dataset (a generator, a `PyDataset`,
`tf.numpy_function`) without a copy where it lies on a 64-byte boundary, and marks it as memory that no operation may
reuse for its result. Rows that are cut from it, as a worker's share of a global batch is, lie in that memory and lack
the mark: the last operation that reads them, such as a loss that subtracts predictions from labels, may write its
result into the user's array. So a share is copied once, where it leaves the dataset.
"""

import os
import random
import warnings
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from coarse.errors import ConfigError, MismatchError
from tf_strategy.data.end import (
    INFINITE,
    NOT_BY_KERAS,
    UNKNOWN,
    DataPart,
    DataSplit,
    allowed_behind,
    different_orders,
    must_ask,
    shared_seed,
)
from tf_strategy.data.end_agreement import DataAgreement
from tf_strategy.private_keras import keras_counts, keras_method, on_data_without_a_batch
from tf_strategy.private_names import auto_sharded, distributed, draws_of, has_lent_memory, may_read_files
from tf_strategy.sums.operations import Operations
from tf_strategy.sums.places import fingerprint_of

AutoShardPolicy = tf.data.experimental.AutoShardPolicy
_MODERATE = b"\x08\x02"
"""CardinalityOptions of compute level CARDINALITY_COMPUTE_MODERATE, which looks into flat_map. Keras makes the datasets
of its arrays of flat_map."""
_IGNORE_STATE = 1
"""ExternalStatePolicy of a graph that is only read."""
_first_reads: WeakKeyDictionary[tf.data.Dataset, bool] = WeakKeyDictionary()
"""True for a dataset whose first batch showed enough files."""
_NO_SEED = 87654321
"""Graph-level seed that TensorFlow gives an operation with its own seed if no global seed is set."""


def distribute(
    dataset: tf.data.Dataset, input_workers: object, strategy: tf.distribute.Strategy, operations: Operations
) -> tf.distribute.DistributedDataset:
    """Split a dataset of global batches over the workers by its AutoShardPolicy; keep one that is split.

    The policy DATA cuts every global batch into one part for each worker, in order of rank. AUTO splits by files if
    there are enough for all workers, and by DATA otherwise and for `model.predict`, whose rows are wanted in order.

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
    num_batches = whole if split is DataSplit.BY_BATCHES or whole == INFINITE else num_batches_of(part)
    return _agreed(dataset, part, split, num_batches, input_workers, strategy, operations)


def from_function(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    input_workers: object,
    strategy: tf.distribute.Strategy,
    operations: Operations,
) -> tf.distribute.DistributedDataset:
    """Distribute the dataset that a function makes for this worker, unsplit; raise as `distribute` does."""
    context = tf.distribute.InputContext(
        num_input_pipelines=operations.num_workers,
        input_pipeline_id=operations.rank,
        num_replicas_in_sync=operations.num_workers,
    )
    part = dataset_fn(context)
    _require_dataset(part, operations.rank)
    return _agreed(part, part, DataSplit.AS_GIVEN, num_batches_of(part), input_workers, strategy, operations)


def num_batches_of(dataset: tf.data.Dataset) -> int:
    """Return the number of elements of an epoch, if known without reading, else INFINITE or UNKNOWN."""
    variant = tf.data.experimental.to_variant(dataset)
    return int(tf.raw_ops.DatasetCardinality(input_dataset=variant, cardinality_options=_MODERATE))


def _split(
    dataset: tf.data.Dataset, by: Callable[[object], tf.data.Dataset], operations: Operations
) -> tuple[DataSplit, tf.data.Dataset]:
    """Return the split that a dataset's policy asks for, and this worker's part."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.HINT):
        return DataSplit.AS_GIVEN, by(policy)
    if policy == AutoShardPolicy.DATA or (policy == AutoShardPolicy.AUTO and keras_method() == "predict"):
        return DataSplit.BY_BATCHES, by(AutoShardPolicy.DATA)
    part = _by_files(dataset, by, operations)
    if part is not None:
        return DataSplit.BY_FILES, part
    if policy == AutoShardPolicy.AUTO:
        return DataSplit.BY_BATCHES, by(AutoShardPolicy.DATA)
    raise ConfigError(
        f"rank {operations.rank}: auto_shard_policy is FILE, and the dataset reads no files, or fewer than the "
        f"{operations.num_workers} workers; set it to DATA"
    )


def _by_files(
    dataset: tf.data.Dataset, by: Callable[[object], tf.data.Dataset], operations: Operations
) -> tf.data.Dataset | None:
    """Return this worker's part by files, or None if there are no files, or too few for any of the workers.

    TensorFlow is not asked about a dataset that reads no files, since it would log errors.
    """
    if not may_read_files(dataset):
        return None
    try:
        part = by(AutoShardPolicy.FILE)
    except tf.errors.NotFoundError:
        return None
    is_enough = are_files_enough(dataset, part, operations.num_workers)
    return part if all(bool(said[0]) for said in operations.gather(tf.constant([is_enough]))) else None


def _agreed(
    source: tf.data.Dataset,
    part: tf.data.Dataset,
    split: DataSplit,
    num_batches: int,
    input_workers: object,
    strategy: tf.distribute.Strategy,
    operations: Operations,
) -> tf.distribute.DistributedDataset:
    """Return a worker's part as a distributed dataset that ends where all other parts end."""
    here = DataPart(int(split), num_batches, *_counted_by_keras(), *order_of(part))
    rows = operations.gather(tf.constant([here], tf.int64))
    parts = [DataPart(*(int(number) for number in row[0])) for row in rows]
    for warning in different_orders(parts):
        warnings.warn(f"rank {operations.rank}: {warning}", stacklevel=2)
    try:
        asks = must_ask(parts)
    except MismatchError as error:
        raise MismatchError(f"rank {operations.rank}: {error}") from None
    agreement, whole = DataAgreement(allowed_behind(split)) if asks else None, owned(part)

    def behind(num_skipped: int) -> tf.data.Dataset:
        rest = whole.skip(num_skipped) if num_skipped else whole
        return rest if agreement is None else agreement.asked(rest)

    return distributed(source, behind, input_workers, strategy, UNKNOWN if asks else num_batches)


def _counted_by_keras() -> tuple[int, int]:
    """Return the numbers of batches and steps by which Keras ends an epoch, or NOT_BY_KERAS twice."""
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
    """Let Keras raise ConfigError for data without a batch from now on, for models of this strategy.

    Keras alone would let out a StopIteration without a text.

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


# --- files


def are_files_enough(dataset: tf.data.Dataset, part: tf.data.Dataset, num_workers: int) -> bool:
    """Return whether a split by files, of which `part` is one worker's share, gives every worker a file.

    If the graph is not available (because it exceeds 2 GiB, say) a first batch is read, once for each dataset.
    """
    if num_workers == 1:
        return True
    try:
        lists = list(_lists_of_names(part))
        if lists:
            return all(_has(names, num_workers) for names in lists)
    except tf.errors.OpError:
        pass  # the first batch tells what is wrong with them
    if dataset not in _first_reads:
        _first_reads[dataset] = _can_read(part)
    return _first_reads[dataset]


def _lists_of_names(part: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yield the datasets, usually of file names, that workers share out; see [Note: names alone]."""
    variant = tf.data.experimental.to_variant(part)
    said = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=_IGNORE_STATE, strip_device_assignment=False
    )
    graph = tf.compat.v1.GraphDef.FromString(said.numpy())
    results = [node for node in graph.node if node.op == "_Retval"]
    for node in graph.node:
        if node.op == "ShardDataset" and node.attr["require_non_empty"].b:
            results[0].input[0] = node.input[0]
            names = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
            shapes, types = node.attr["output_shapes"].list.shape, node.attr["output_types"].list.type
            spec = tuple(tf.TensorSpec(shape, kind) for shape, kind in zip(shapes, types, strict=True))
            yield tf.data.experimental.from_variant(names, spec)


def _has(names: tf.data.Dataset, num_wanted: int) -> bool:
    """Return whether there are `num_wanted` names or more; names of unknown number are read."""
    num_names = int(names.cardinality())
    if num_names == tf.data.UNKNOWN_CARDINALITY:
        num_names = int(names.take(num_wanted).reduce(np.int64(0), lambda num_read, *_: num_read + 1))
    return num_names >= num_wanted or num_names == tf.data.INFINITE_CARDINALITY


def _can_read(part: tf.data.Dataset) -> bool:
    """Return whether TensorFlow finds enough files when it reads a first batch."""
    try:
        next(iter(part), None)
    except tf.errors.InvalidArgumentError as error:
        return "FILE based sharding" not in str(error)
    except tf.errors.OpError:
        pass  # it comes again where the data are used
    return True


# --- order


def share_seed(operations: Operations) -> bool:
    """Give all ranks equal random states for equal shuffles; return whether the program set a seed.

    All ranks get one global seed of TensorFlow, unless the program has set it. The generators of Python and numpy are
    seeded anew on all ranks if their states differ.
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
    return is_set


def order_of(dataset: tf.data.Dataset) -> tuple[int, int, int, int]:
    """Return the last four fields of DataPart, on which the order of a dataset's rows depends."""
    seeds, is_from_python = draws_of(dataset)
    states = (_python_state(), _numpy_state()) if is_from_python else (0, 0)
    return _global_seed()[0], fingerprint_of(repr(seeds).encode()), *states


def _global_seed() -> tuple[int, bool]:
    """Return TensorFlow's global seed, and whether it was set."""
    seed = int(tf.compat.v1.get_seed(0)[0])
    return seed, seed != _NO_SEED


def _python_state() -> int:
    return fingerprint_of(repr(random.getstate()).encode())


def _numpy_state() -> int:
    parts = tf.nest.flatten(np.random.get_state(legacy=False))
    return fingerprint_of(
        b"".join(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() for part in parts)
    )


# --- memory


def owned(part: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset of equal elements in memory that TensorFlow owns; see [Note: lent memory]."""
    if not has_lent_memory(part):
        return part
    whole = tf.data.Dataset.zip((part,))  # else map would take tuples apart
    return whole.map(lambda element: tf.nest.map_structure(_copy, element, expand_composites=True))


def _copy(component: tf.Tensor | None) -> tf.Tensor | None:
    """Copy a tensor of numbers; return any other component, which TensorFlow owns already.

    A `tf.identity` would share the memory.
    """
    if component is None or component.dtype in (tf.string, tf.variant, tf.resource):
        return component
    return tf.raw_ops.DeepCopy(x=component)
