"""Private names of TensorFlow, which only this file knows; tests pin each.

Keras' private names are in private_keras. Other files use only public names (`tf.distribute.Strategy`,
`tf.distribute.CrossDeviceOps`, `tf.data`). A strategy that Keras accepts, with its own variables and its own
reductions, must subclass MirroredExtended.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.distribute import cross_device_ops, distribute_lib, distribute_utils, input_lib, values
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.reduce_util import ReduceOp
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import random_seed
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import stateful_random_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
from tensorflow.python.ops.stateful_random_ops import Generator
from tensorflow.python.trackable.base import CheckpointInitialValue

SyncOnReadVariable = values.SyncOnReadVariable
_READERS = {
    *("ArrayRecordDataset", "FixedLengthRecordDataset", "RecordIODataset"),
    *("SSTableDataset", "TextLineDataset", "TFRecordDataset"),
}
"""Operations, without their versions, whose files TensorFlow shares out."""

_CALLS_OF_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_STATEFUL_DRAWS = {
    *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
    *("RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "RngReadAndSkip", "RngSkip"),
    *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "StatefulRandomBinomial", "TruncatedNormal"),
    *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform"),
    *("StatefulUniformFullInt", "StatefulUniformInt"),
}

__all__ = [
    "Generator",
    "MirroredExtended",
    "PartDataset",
    "ReduceOp",
    "SyncOnReadVariable",
    "auto_sharded",
    "callers",
    "distributed",
    "draws_of",
    "eager_draws",
    "frames",
    "global_generator",
    "has_lent_memory",
    "has_replica_values",
    "initial_tensor",
    "innermost_function",
    "is_mirrored",
    "is_strategy_variable",
    "jit_compiled_function",
    "local_value",
    "may_read_files",
    "of_replica",
    "on_devices_of",
    "on_replica_write",
    "operation_types_of",
    "per_replica",
    "random_seed",
    "regrouped",
    "stateful_draws",
    "strays_written",
    "value_context",
    "variables_of_traced_functions",
    "why_not_repeated",
    "written_in_traced_functions",
]


def per_replica(value: object) -> object:
    """Wrap one replica's nested values as PerReplica values."""
    return distribute_utils.regroup((value,), always_wrap=True)


def is_mirrored(value: object) -> bool:
    """Return whether a value is known to be equal on all replicas."""
    return bool(distribute_utils.is_mirrored(value))


def has_replica_values(value: object) -> bool:
    """Return whether a value wraps the values of this process's replicas."""
    return isinstance(value, values.DistributedValues)


def local_value(value: object) -> object:
    """Return the value of this process's one replica."""
    return value.values[0] if isinstance(value, values.DistributedValues) else value


def of_replica(nested: Any) -> Any:  # noqa: ANN401
    """Return nested values as this process's one replica sees them; variables stay unchanged."""
    return distribute_utils.select_replica(0, nested)


def regrouped(nested: Any) -> Any:  # noqa: ANN401
    """Return one replica's nested results as the strategy's."""
    return distribute_utils.regroup((nested,))


def on_devices_of(value: object, destinations: object) -> object:
    """Copy a tensor to the devices of `destinations`."""
    return cross_device_ops.simple_broadcast(value, destinations, always_mirrored=True)


def is_strategy_variable(variable: object, extended: type) -> bool:
    """Return whether a variable of Keras or TensorFlow belongs to a strategy whose extended is of this type."""
    value = getattr(variable, "value", variable)
    value = variable if callable(value) else value  # a tf.Variable's is a method
    return isinstance(value, values.DistributedVariable) and isinstance(value.distribute_strategy.extended, extended)


def on_replica_write(variable: object, note: Callable[[tf.Variable], None]) -> None:
    """Call `note` with the local variable whenever a replica alone assigns a variable of the strategy."""
    assert isinstance(variable, values.DistributedVariable)
    update = variable._update_replica
    (local,) = variable.values

    def noted(update_fn: object, value: object, **kwargs: object) -> object:
        note(local)
        return update(update_fn, value, **kwargs)

    variable._update_replica = noted


def variables_of_traced_functions() -> list[tf.Variable]:
    """Return all variables used so far in the functions that are being traced."""
    graphs = _graphs_being_traced()
    return list(graphs[-1]._watched_variables) if graphs else []  # those of the functions within are among them


def written_in_traced_functions(variables: Mapping[int, tf.Variable]) -> tuple[set[int], set[int]]:
    """Return the numbers of assigned variables: around the innermost function being traced, and within it.

    Only variables assigned so far count.

    Assignments by functions that it calls count, also by those that were traced before.
    """
    numbers = {id(variable.handle): number for number, variable in variables.items()}
    graphs = _graphs_being_traced()
    plain = (depth for depth, graph in enumerate(graphs, 1) if not isinstance(graph, ControlFlowFuncGraph))
    depth = next(plain, len(graphs))
    around = [_written_in(graph, numbers) for graph in reversed(graphs[depth:])]
    within = [_written_in(graph, numbers) for graph in reversed(graphs[:depth])]
    return set().union(*around), set().union(*within)


def _written_in(graph: FuncGraph, numbers: dict[int, int]) -> set[int]:
    """Return the numbers of the variables that a graph assigns; add its own handles of them to `numbers`."""
    captures = [(numbers[id(outer)], inner) for outer, inner in graph.captures if id(outer) in numbers]
    numbers.update((id(inner), number) for number, inner in captures)
    return {
        number
        for number, inner in captures
        if any(inner in get_read_write_resource_inputs(operation)[1] for operation in inner.consumers())
    }


def strays_written() -> list[tf.Variable]:
    """Return variables of no strategy that traced functions have assigned so far, but not by calling others."""
    handles = [
        handle
        for graph in _graphs_being_traced()
        for handle, inner in graph.captures
        if any(operation.type.startswith("Assign") for operation in inner.consumers())
    ]
    written = [one for one in variables_of_traced_functions() if any(one.handle is handle for handle in handles)]
    return [one for one in written if not any(hasattr(part, "_distributed_container") for part in (one, one.handle))]


def _graphs_being_traced() -> list[FuncGraph]:
    """Return the graphs that are being traced, innermost first."""
    graph, found = tf.compat.v1.get_default_graph(), []
    while isinstance(graph, FuncGraph):
        found.append(graph)
        graph = graph.outer_graph
    return found


def value_context(replica: int, num_replicas: int) -> object:
    """Return the context that a function of `experimental_distribute_values_from_function` receives."""
    return distribute_lib.ValueContext(replica, num_replicas)


def initial_tensor(initial_value: object, dtype: tf.DType | None) -> tf.Tensor:
    """Return a variable's initial value, given as a value, a function or a checkpoint's value."""
    if callable(initial_value):
        initial_value = initial_value()
    if isinstance(initial_value, CheckpointInitialValue):
        initial_value = initial_value.wrapped_value
    return tf.convert_to_tensor(initial_value, dtype=dtype)


def auto_sharded(
    dataset: tf.data.Dataset, input_workers: object, strategy: tf.distribute.Strategy, worker: int, num_workers: int
) -> tf.data.Dataset:
    """Return a worker's part of a dataset of global batches, as MultiWorkerMirroredStrategy splits it."""
    context = distribute_lib.InputContext(
        num_input_pipelines=num_workers, input_pipeline_id=worker, num_replicas_in_sync=num_workers
    )
    split = input_lib.DistributedDataset(
        input_workers, strategy, dataset, num_replicas_in_sync=num_workers, input_context=context
    )
    (part,) = split._cloned_datasets
    return part


class PartDataset(input_lib.DistributedDataset):
    """Dataset of one worker. It counts its iterators, since each of a shuffled dataset has another order."""

    source: tf.data.Dataset
    """The dataset as the script gave it."""
    behind: Callable[[int], tf.data.Dataset]
    """Function that returns the worker's part behind so many batches."""
    num_iterators = 0
    """Iterators made so far outside of tf.functions."""
    _num_skipped = 0
    _cloned_datasets: list[tf.data.Dataset]

    def go_on(self, iterator: int, num_skipped: int) -> None:
        """Let the next iterator be the one numbered `iterator`, from 1, behind `num_skipped` of its batches."""
        while self.num_iterators < iterator - 1:
            iter(self)
        self._num_skipped = num_skipped

    def __iter__(self) -> Any:  # noqa: ANN401
        """Return an iterator."""
        if not tf.executing_eagerly():
            return super().__iter__()
        self.num_iterators += 1
        num_skipped, self._num_skipped = self._num_skipped, 0
        if not num_skipped:
            return super().__iter__()
        whole = self._cloned_datasets
        self._cloned_datasets = [self.behind(num_skipped)]
        try:
            return super().__iter__()
        finally:
            self._cloned_datasets = whole


def distributed(
    source: tf.data.Dataset,
    behind: Callable[[int], tf.data.Dataset],
    input_workers: object,
    strategy: tf.distribute.Strategy,
    num_batches: int,
) -> PartDataset:
    """Return a worker's part as a DistributedDataset of this cardinality that fetches nothing ahead.

    The function `behind` returns the part behind so many batches.
    """
    part = behind(0)
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
    whole = PartDataset(
        input_workers,
        strategy,
        components=[part],
        element_spec=part.element_spec,
        enable_get_next_as_optional=False,
        options=options,
    )
    whole._cardinality = num_batches
    whole.source, whole.behind = source, behind
    return whole


def why_not_repeated(dataset: tf.data.Dataset) -> str | None:
    """Return why a new iterator may not repeat the same elements in the same order; None if it does."""
    types = _operation_types(dataset)
    if "GeneratorDataset" in types:
        return "its elements come from a generator of Python's, and nothing tells where that was"
    if not types.isdisjoint(_CALLS_OF_PYTHON):
        return "it calls functions of Python's, which may draw or count"
    if draws := stateful_draws(types):
        return f"it draws from TensorFlow's stateful random operations ({draws[0]})"
    if any(operation.startswith("Assign") for operation in types):
        return "it writes variables, as generators of Keras' and TensorFlow's do, some batches ahead of the training"
    options = (one.options().deterministic for one in _all_within(dataset))
    if any(one is False for one in options) or any(
        getattr(one, "_deterministic", None) == "false" for one in _all_within(dataset)
    ):
        return "it has deterministic=False, so that elements come in any order"
    return None


def stateful_draws(types: set[str]) -> list[str]:
    """Return, sorted, the operation types that draw from a state which no checkpoint has."""
    return sorted(types & _STATEFUL_DRAWS)


def operation_types_of(function: Any) -> set[str]:  # noqa: ANN401
    """Return the types of all operations of a tf.function as traced so far, and of those that it calls."""
    graphs = [concrete.graph for concrete in function._list_all_concrete_functions()]
    return _types_within(graphs)


def eager_draws() -> Any | None:  # noqa: ANN401
    """Return the random.Random that seeds eager operations; None if no global seed was set."""
    return getattr(context.context(), "_rng", None)


def global_generator() -> Generator | None:
    """Return tf.random's global generator, or None before its first use."""
    found: Generator | None = stateful_random_ops.global_generator
    return found


def draws_of(dataset: tf.data.Dataset) -> tuple[list[tuple[int, int]], bool]:
    """Return the seeds of operations that draw in a dataset, and whether a Python generator feeds it."""
    seeds = [(int(one._seed), int(one._seed2)) for one in _all_within(dataset) if hasattr(one, "_seed2")]
    return seeds, "GeneratorDataset" in _operation_types(dataset)


def has_lent_memory(dataset: tf.data.Dataset) -> bool:
    """Return whether elements may lie in memory of numpy.

    This is so if `tf.numpy_function` returns them, or nothing is known of the dataset.
    """
    is_known = not any(isinstance(one, dataset_ops._VariantDataset) for one in _all_within(dataset))
    return not is_known or not _operation_types(dataset).isdisjoint({"PyFunc", "PyFuncStateless"})


def may_read_files(dataset: tf.data.Dataset) -> bool:
    """Return whether TensorFlow might split a dataset by files: it reads some, or nothing is known of it."""
    files = (tf.data.TFRecordDataset, tf.data.TextLineDataset, tf.data.FixedLengthRecordDataset)
    kinds = (*files, dataset_ops._VariantDataset)
    names = {name.removesuffix("V2").removesuffix("V3") for name in _operation_types(dataset)}
    return any(isinstance(one, kinds) for one in _all_within(dataset)) or not names.isdisjoint(_READERS)


def _all_within(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return a dataset and all datasets of which it is made."""
    found, ahead = {}, [dataset]
    while ahead:
        one = ahead.pop()
        ahead += [] if id(one) in found else one._inputs()
        found[id(one)] = one
    return list(found.values())


def _operation_types(dataset: tf.data.Dataset) -> set[str]:
    """Return the types of all operations in a dataset's functions and in those that these call."""
    return _types_within([function.function.graph for one in _all_within(dataset) for function in one._functions()])


def _types_within(graphs: list[FuncGraph]) -> set[str]:
    graphs = [*graphs, *(inner.graph for graph in graphs for inner in graph._functions.values())]
    return {operation.type for graph in graphs for operation in graph.get_operations()}


def innermost_function() -> object | None:
    """Return the innermost tf.function that is being traced, or None."""
    return next(_functions_being_traced(), None)


def jit_compiled_function() -> str | None:
    """Return the name of the function with `jit_compile=True` that is being traced, or None."""
    for function in _functions_being_traced():
        if function._jit_compile:
            return str(getattr(function.python_function, "__name__", function))
    return None


def _functions_being_traced() -> Iterator[Function]:
    for _, owner in callers():
        if isinstance(owner, Function):
            yield owner


def callers() -> Iterator[tuple[str, object]]:
    """Yield the name and object of each method that is being called, innermost first."""
    for frame in frames():
        yield frame.f_code.co_name, frame.f_locals.get("self")


def frames() -> Iterator[FrameType]:
    """Yield the frames of the current calls, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
