"""Whether a dataset that is split by files has one for each worker, told by the names of the files alone.

[Note: names alone] TensorFlow notices that there are too few files when the first batch is read, which runs all that a
program does to its rows. But the split is a rewrite of the dataset's graph: each node that shares out names stands in
it, marked as one that must not come out empty, and what stands before such a node can be counted by itself.
"""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

_IGNORE_STATE = 1
"""ExternalStatePolicy of a graph that is to be read only."""
_first_reads: WeakKeyDictionary[tf.data.Dataset, bool] = WeakKeyDictionary()
"""What reading a first batch has told, by dataset."""


def are_files_enough(dataset: tf.data.Dataset, part: tf.data.Dataset, num_workers: int) -> bool:
    """Whether TensorFlow's split by files of a dataset, of which `part` is one worker's, gives all workers something.

    Where the graph cannot be had (of more than 2 GiB, say) a first batch is read, once for each dataset.
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
    """The datasets, of names of files as a rule, of which each worker takes a share; see [Note: names alone]."""
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
    """Whether there are as many names; they are read where their number is not known."""
    num_names = int(names.cardinality())
    if num_names == tf.data.UNKNOWN_CARDINALITY:
        num_names = int(names.take(num_wanted).reduce(np.int64(0), lambda num_read, *_: num_read + 1))
    return num_names >= num_wanted or num_names == tf.data.INFINITE_CARDINALITY


def _can_read(part: tf.data.Dataset) -> bool:
    """Whether TensorFlow finds enough files when it reads a first batch."""
    try:
        next(iter(part), None)
    except tf.errors.InvalidArgumentError as error:
        return "FILE based sharding" not in str(error)
    except tf.errors.OpError:
        pass  # it comes again where the data are used
    return True
