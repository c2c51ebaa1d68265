"""Internal side of the strategy: variables, values, data and reductions for `tf.distribute` and Keras."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import tensorflow as tf

import coarse
from coarse.errors import ConfigError, UnsupportedError
from tf_strategy.agreement.variables import EqualStarts, LayerStates, read_from_rank_0
from tf_strategy.data import datasets
from tf_strategy.private_keras import makes_row_state
from tf_strategy.private_names import (
    MirroredExtended,
    ReduceOp,
    has_replica_values,
    initial_tensor,
    is_mirrored,
    of_replica,
    per_replica,
    regrouped,
    value_context,
)
from tf_strategy.sums.operations import CoarseCrossDeviceOps, Operations, as_tensor


class CoarseReplicaContext(tf.distribute.ReplicaContext):
    """Context in which a replica runs; see [Note: summed first] in tf_strategy.gradients."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:  # noqa: ANN401
        """Return the sum or mean over all workers; gradients that an optimizer was given are sums already."""
        return value if self.strategy.extended.gradients_are_summed else super().all_reduce(reduce_op, value, options)


class UnsupportedMethods:
    """Refusals of MirroredStrategy's TensorFlow 1 methods, which would act for this process alone.

    This class stands before MirroredExtended among the bases of an extended.
    """

    def _make_dataset_iterator(self, dataset: Any) -> NoReturn:  # noqa: ANN401
        """Raise UnsupportedError: every worker would get the same part of each batch."""
        raise _refused("make_dataset_iterator", "strategy.experimental_distribute_dataset(dataset)")

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> NoReturn:  # noqa: ANN401
        """Raise UnsupportedError: every worker would be told that it is the only input pipeline."""
        raise _refused("make_input_fn_iterator", "strategy.distribute_datasets_from_function(dataset_fn)")

    def _experimental_make_numpy_dataset(self, numpy_input: Any, session: Any) -> NoReturn:  # noqa: ANN401
        """Raise UnsupportedError: the method needs a session."""
        raise _refused("experimental_make_numpy_dataset", "tf.data.Dataset.from_tensor_slices(arrays)")

    def _experimental_run_steps_on_iterator(
        self, fn: Any, iterator: Any, iterations: Any, initial_loop_values: Any = None  # noqa: ANN401
    ) -> NoReturn:
        """Raise UnsupportedError: the results of the last step would be this worker's alone."""
        raise _refused("experimental_run_steps_on_iterator", "a loop of strategy.run within a tf.function")

    def _configure(
        self,
        session_config: Any = None,  # noqa: ANN401
        cluster_spec: Any = None,  # noqa: ANN401
        task_type: Any = None,  # noqa: ANN401
        task_id: Any = None,  # noqa: ANN401
    ) -> NoReturn:
        """Raise UnsupportedError: TensorFlow would look for workers in a cluster of its own."""
        raise _refused("configure", "mpirun or coarse run, which say who the workers are")


class CoarseExtended(UnsupportedMethods, MirroredExtended):
    """MirroredStrategy's variables with one replica in each process, and reductions over all processes."""

    def __init__(self, container_strategy: tf.distribute.Strategy, device: str, operations: Operations) -> None:
        self._operations = operations
        self.gradients_are_summed = False
        """True if an optimizer is at work, on gradients that are sums over all workers."""
        self.layer_states = LayerStates(lambda: self.gradients_are_summed)
        self.equal_starts = EqualStarts(operations, lambda: self.gradients_are_summed)
        super().__init__(container_strategy, devices=[device], cross_device_ops=CoarseCrossDeviceOps(operations))
        self.experimental_enable_get_next_as_optional = False

    # --- who is who

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._operations.num_workers

    def _in_multi_worker_mode(self) -> bool:
        """Return False: workers agree on the end in tf_strategy.data.datasets, not by an empty batch."""
        return False

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self._operations.rank + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self._operations.rank

    @property
    def experimental_between_graph(self) -> bool:
        """True: every process builds its own graphs."""
        return True

    @property
    def rank(self) -> int:
        """Rank of this worker."""
        return self._operations.rank

    @property
    def is_chief(self) -> bool:
        """True if this is rank 0."""
        return self._operations.rank == 0

    @property
    def should_checkpoint(self) -> bool:
        """True if this is the rank that writes files for all."""
        return self.is_chief

    @property
    def should_save_summary(self) -> bool:
        """True if this is the rank that writes summaries for all."""
        return self.is_chief

    # --- replicas

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Return the results of this process's replica.

        It runs in this thread: the base class starts one, which cannot reduce in a branch or loop of a tf.function.
        """
        context = CoarseReplicaContext(self._container_strategy(), self._operations.rank)
        with tf.device(self._devices[0]), context:
            return regrouped(fn(*of_replica(args or ()), **of_replica(kwargs or {})))

    @contextmanager
    def summed_gradients(self) -> Iterator[None]:
        """Mark gradients as sums over all workers within the block, so that all that an optimizer writes is equal."""
        self.gradients_are_summed = True
        try:
            yield
        finally:
            self.gradients_are_summed = False

    # --- variables

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:  # noqa: ANN401
        variable = super()._create_variable(next_creator, **kwargs)
        if has_replica_values(variable) and not makes_row_state():
            variable = read_from_rank_0(variable)
            self.layer_states.watch(variable)
            self.equal_starts.watch(variable)
        return variable

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:  # noqa: ANN401
        if not has_replica_values(var):
            raise ConfigError(
                f"rank {self._operations.rank}: variable {getattr(var, 'name', var)!r} was made outside of "
                "strategy.scope(), so that it is not kept equal on all workers; make the model, its metrics and its "
                "optimizer within strategy.scope()"
            )
        return super()._update(var, fn, args, kwargs, group)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any  # noqa: ANN401
    ) -> Callable[[], tf.Tensor]:
        """Return a function that returns the first value: rank 0's, even if this rank would begin with another.

        A state with a row for each of the worker's rows stays the worker's own, since workers may differ in their
        numbers of rows.
        """
        given, dtype, name = kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("name")
        if makes_row_state():
            return lambda: initial_tensor(given, dtype)

        def of_rank_0() -> tf.Tensor:
            return self._operations.broadcast(initial_tensor(given, dtype), f"the first value of {name!r}")

        return of_rank_0

    # --- reductions

    def sums_of_gradients(self, gradients: list[Any], exact: Sequence[int]) -> list[Any]:
        """Return the sums over all workers of one optimizer's gradients; `exact` numbers are no gradients."""
        return self._cross_device_ops.sums_of_gradients(gradients, exact)

    def _use_merge_call(self) -> bool:
        return True

    def _get_cross_device_ops(self, value: Any) -> CoarseCrossDeviceOps:  # noqa: ANN401
        """Return this strategy's operations: the base class leaves int32 and host values to each process."""
        return self._cross_device_ops

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:  # noqa: ANN401
        if is_mirrored(value) and reduce_op == ReduceOp.MEAN:
            return value
        return tf.nest.map_structure(
            lambda one: self._cross_device_ops.reduce(reduce_op, as_tensor(one, destinations), destinations, options),
            value,
        )

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:  # noqa: ANN401
        """Return rank 0's tensor.

        TensorFlow passes the value that the first replica writes, and this rank's may differ from it.
        """
        if self.gradients_are_summed:
            return tensor  # equal on all ranks, as all is that an optimizer writes
        return self._cross_device_ops.broadcast(as_tensor(tensor, destinations), destinations)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:  # noqa: ANN401
        """Return the values of all workers.

        The base class takes a value without a replica wrapper, as this strategy's are, for the values of all.
        """
        return self._cross_device_ops._gather_implementation(as_tensor(value), destinations, axis, options)

    # --- data

    def _experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any) -> Any:  # noqa: ANN401
        require_input_options(options, splits=True)
        distributed = datasets.distribute(dataset, self._input_workers, self._container_strategy(), self._operations)
        self.equal_starts.require()
        return distributed

    def _distribute_datasets_from_function(self, dataset_fn: Callable[..., tf.data.Dataset], options: Any) -> Any:  # noqa: ANN401
        require_input_options(options, splits=False)
        distributed = datasets.from_function(
            dataset_fn, self._input_workers, self._container_strategy(), self._operations
        )
        self.equal_starts.require()
        return distributed

    def _experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:  # noqa: ANN401
        operations = self._operations
        return per_replica(value_fn(value_context(operations.rank, operations.num_workers)))


def _refused(method: str, instead: str) -> UnsupportedError:
    return UnsupportedError(
        f"rank {coarse.rank()}: CoarseStrategy does not have TensorFlow 1's {method}(), which would act in this "
        f"process alone; use {instead}"
    )


def require_input_options(options: tf.distribute.InputOptions | None, *, splits: bool) -> None:
    """Return if data can be given as the options ask; `splits` is true for a dataset of global batches.

    Raises:
        UnsupportedError: they ask for what one replica in each process, reading on its processor, does not have.
    """
    if options is None:
        return
    if options.experimental_place_dataset_on_device:
        raise UnsupportedError(
            f"rank {coarse.rank()}: InputOptions: datasets are read on the processor; leave out "
            "experimental_place_dataset_on_device"
        )
    if splits and options.experimental_replication_mode == tf.distribute.InputReplicationMode.PER_REPLICA:
        raise UnsupportedError(
            f"rank {coarse.rank()}: InputOptions: a dataset of global batches is split over workers, not given to each "
            "replica whole; use strategy.distribute_datasets_from_function, or leave out experimental_replication_mode"
        )
