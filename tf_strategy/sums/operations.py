"""Synchronisation as TensorFlow operations: pushed bucket by bucket as gradients become ready, waited for in order.

[Note: order] Every synchronisation of a graph begins with an update of one variable, the ticket, and ends with another.
TensorFlow keeps updates of one variable in the order of the program, through nested functions and loops too, so that
synchronisations follow one another in one order on all ranks; within one, each bucket is pushed as soon as its own
gradients are there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType, Op
from tf_strategy.private_names import ReduceOp, has_replica_values, jit_compiled_function, local_value, on_devices_of
from tf_strategy.sums.reduction import ReducedTensors, members_of
from tf_strategy.sums.rounds import Rounds

Arrays = list[np.ndarray]
_WIRE_OF = {
    tf.float16: DType.FLOAT16,
    tf.bfloat16: DType.BFLOAT16,
    tf.float32: DType.FLOAT32,
    tf.float64: DType.FLOAT64,
    tf.int32: DType.INT32,
    tf.int64: DType.INT64,
    tf.uint8: DType.UINT8,
}


class Operations:
    """Operations of the strategy's reductions; in eager mode they run at once."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.num_workers = rounds.num_workers
        self.rank = rounds.rank
        with tf.init_scope(), tf.device("CPU:0"):
            self._ticket = tf.Variable(0, dtype=tf.int64, trainable=False, name="coarse_ticket")

    # --- sums and means

    def reduce(
        self, op: Op, tensors: Sequence[tf.Tensor], *, exact: tuple[int, ...] | None = None
    ) -> list[tf.Tensor]:
        """Return the sums or means over all workers, of the same shapes and types.

        Reductions whose shapes a graph knows have device memory of their own. So have gradients, which have the same
        shapes in every step. All other tensors share some memory, and may be of any shapes. If `exact` is given, all
        tensors but these are gradients.


        Raises:
            TypeError: a type that devices cannot add, or the mean of integers.
            ConfigError: within a function with `jit_compile=True`.
        """
        self._require_no_jit()
        wires = tuple(wire_type_of(tensor.dtype, f"rank {self.rank}: a reduction") for tensor in tensors)
        if op is Op.AVERAGE and any(wire.is_integer for wire in wires):
            raise TypeError(
                f"rank {self.rank}: the mean of integers would be rounded; cast them to tf.float32, or reduce by SUM"
            )
        with tf.device("CPU:0"):
            raw = [stored(tensor) for tensor in tensors]
            if tf.executing_eagerly():
                shapes = tuple(tuple(tensor.shape) for tensor in tensors)
                reduced = self._rounds.reduce if exact is None else self._now_in_buckets
                found = reduced(self._tensors(op, wires, shapes, exact), [tensor.numpy() for tensor in raw])
                results = [tf.convert_to_tensor(array) for array in found]
            elif all(tensor.shape.is_fully_defined() for tensor in tensors):
                shapes = tuple(tuple(tensor.shape.as_list()) for tensor in tensors)
                results = self._in_buckets(self._tensors(op, wires, shapes, exact), raw)
            else:
                results = self._at_once(op, wires, raw)
        return [_as(result, like) for result, like in zip(results, tensors, strict=True)]

    def _tensors(
        self, op: Op, wires: tuple[DType, ...], shapes: tuple[tuple[int, ...], ...], exact: tuple[int, ...] | None
    ) -> ReducedTensors:
        return ReducedTensors(op, wires, shapes, exact if self._rounds.tells_gradients else None)

    def _now_in_buckets(self, tensors: ReducedTensors, arrays: Arrays) -> Arrays:
        buckets = [members_of(plan) for plan in tensors.plans(self._rounds.bucket_bytes)]
        for bucket, members in enumerate(buckets):
            self._rounds.push(tensors, bucket, [arrays[number] for number in members])
        results: dict[int, np.ndarray] = {}
        for bucket, members in enumerate(buckets):
            results |= zip(members, self._rounds.take(tensors, bucket), strict=True)
        return [results[number] for number in range(len(arrays))]

    def _in_buckets(self, tensors: ReducedTensors, raw: list[tf.Tensor]) -> list[tf.Tensor]:
        buckets = [members_of(plan) for plan in tensors.plans(self._rounds.bucket_bytes)]
        results: dict[int, tf.Tensor] = {}
        entered = self._enter()
        with tf.control_dependencies([entered]):
            pushed = [
                self._pushed(tensors, bucket, [raw[number] for number in members])
                for bucket, members in enumerate(buckets)
            ]
        before: list[tf.Tensor] = pushed
        for bucket, members in enumerate(buckets):
            with tf.control_dependencies(before):
                types = [raw[number].dtype for number in members]
                taken = _operation(partial(self._rounds.take, tensors, bucket), [], types)
            results |= dict(zip(members, taken, strict=True))
            before = taken
        self._leave(before)
        return [results[number] for number in range(len(raw))]

    def _pushed(self, tensors: ReducedTensors, bucket: int, raw: list[tf.Tensor]) -> tf.Tensor:
        """Push a bucket.

        If rounds are timed, the first push says how many seconds before it the last variable's gradient came.
        """

        def push(*arrays: np.ndarray) -> np.int64:
            self._rounds.push(tensors, bucket, arrays[: len(raw)], *map(float, arrays[len(raw) :]))
            return np.int64(bucket)

        is_marked = bucket == 0 and self._rounds.is_timed(tensors)
        ago_s = [_seconds_between(raw[:1], raw)] if is_marked else []
        return _operation(push, [*raw, *ago_s], [tf.int64])[0]

    def _at_once(self, op: Op, wires: tuple[DType, ...], raw: list[tf.Tensor]) -> list[tf.Tensor]:
        """Reduce tensors whose shapes are unknown until they come."""

        def reduced(*arrays: np.ndarray) -> Arrays:
            return self._rounds.reduce(ReducedTensors(op, wires, tuple(array.shape for array in arrays)), arrays)

        return self._alone(reduced, raw, [tensor.dtype for tensor in raw])

    # --- from one, and of all

    def broadcast(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        """Return rank 0's values on every rank; `what` names the tensor in errors."""
        require_bits(tensor.dtype, f"rank {self.rank}: {what}")
        with tf.device("CPU:0"):
            if tf.executing_eagerly():
                return tf.convert_to_tensor(self._rounds.broadcast(tensor.numpy(), what))
            self._require_no_jit()
            (result,) = self._alone(lambda array: [self._rounds.broadcast(array, what)], [tensor], [tensor.dtype])
        result.set_shape(tensor.shape)
        return result

    def gather(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Return every rank's tensor, in order of rank; they may differ in the first extent."""
        self._require_no_jit()
        require_bits(tensor.dtype, f"rank {self.rank}: a gathering")
        with tf.device("CPU:0"):
            if tf.executing_eagerly():
                return [tf.convert_to_tensor(array) for array in self._rounds.gather(tensor.numpy())]
            results = self._alone(self._rounds.gather, [tensor], [tensor.dtype] * self.num_workers)
        for result in results:
            result.set_shape([None, *tensor.shape[1:]])
        return results

    def _alone(
        self, function: Callable[..., Arrays], inputs: list[tf.Tensor], types: list[tf.DType]
    ) -> list[tf.Tensor]:
        """Run a whole synchronisation as one operation."""
        with tf.control_dependencies([self._enter()]):
            results = _operation(function, inputs, types)
        self._leave(results)
        return results

    def _require_no_jit(self) -> None:
        name = jit_compiled_function()
        if name is not None:
            raise ConfigError(
                f"rank {self.rank}: {name} has jit_compile=True, and XLA cannot compile an operation that talks to "
                "memory devices; pass jit_compile=False to model.compile or tf.function"
            )

    def _enter(self) -> tf.Operation:
        return self._ticket.assign_add(1, read_value=False)

    def _leave(self, results: list[tf.Tensor]) -> None:
        with tf.control_dependencies(results):
            self._ticket.assign_add(1, read_value=False)


def _operation(function: Callable[..., Any], inputs: list[tf.Tensor], types: list[tf.DType]) -> list[tf.Tensor]:
    """Make a stateful operation that calls a Python function on arrays."""
    results = tf.numpy_function(function, inputs, types, stateful=True)
    return list(results) if isinstance(results, list | tuple) else [results]


def _seconds_between(first: list[tf.Tensor], last: list[tf.Tensor]) -> tf.Tensor:
    """Return the seconds, float64, from when `first` were there until `last` were too."""
    with tf.control_dependencies(first):
        begin_s = tf.timestamp()
    with tf.control_dependencies([begin_s, *last]):
        return tf.timestamp() - begin_s


def _as(result: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    result = tf.bitcast(result, like.dtype) if result.dtype != like.dtype else result
    result.set_shape(like.shape)
    return result


class CoarseCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Reductions, broadcasts and gatherings over all workers, as `tf.distribute` asks of any strategy."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    @property
    def _num_between_graph_workers(self) -> int:
        """Number of workers, at least 2. With 1 the base class would take one worker's values for those of all."""
        return max(2, self._operations.num_workers)

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:  # noqa: ANN401
        """Return one value's sum or mean, on the devices of `destinations`."""
        (combined,) = self._combined(reduce_op, [local_value(per_replica_value)])
        return on_devices_of(combined, destinations)

    def batch_reduce(self, reduce_op: Any, value_destination_pairs: Any, options: Any = None) -> Any:  # noqa: ANN401
        """Return many values' sums or means in one synchronisation.

        A destination (a tensor's device) may be empty.
        """
        return self._combined(reduce_op, [as_tensor(local_value(value)) for value, _ in value_destination_pairs])

    def sums_of_gradients(self, gradients: list[Any], exact: Sequence[int]) -> list[Any]:
        """Return the sums, in one synchronisation, of tensors that have the same shapes in every step.

        The `exact` numbers are no gradients: their sums are wanted unchanged.
        """
        return self._combined(ReduceOp.SUM, [as_tensor(local_value(one)) for one in gradients], exact)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:  # noqa: ANN401
        """Return rank 0's tensor, or rows, on the devices of `destinations`."""
        name = getattr(destinations, "name", None)
        what = "a broadcast" if name is None else f"what the first replica writes to {name!r}"
        if isinstance(tensor, tf.IndexedSlices):
            rows, indices = (self._operations.gather(part)[0] for part in (tensor.values, tensor.indices))
            first = tf.IndexedSlices(rows, indices, tensor.dense_shape)
        else:
            first = self._operations.broadcast(tensor, what)
        return on_devices_of(first, destinations)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any) -> Any:  # noqa: ANN401
        """Return all workers' values end to end along an axis, in order of rank."""
        value: Any = local_value(per_replica_value)
        num_axes = value.shape.rank
        if num_axes is None or not -num_axes <= axis < num_axes:
            raise ValueError(
                f"rank {self._operations.rank}: values of shape {value.shape} cannot be gathered along axis {axis}"
            )
        axis %= num_axes
        rest = [n for n in range(num_axes) if n != axis]
        first = tf.transpose(value, [axis, *rest])
        joined = tf.concat(self._operations.gather(first), 0)
        back = [rest.index(n) + 1 if n != axis else 0 for n in range(num_axes)]
        return on_devices_of(tf.transpose(joined, back), destinations)

    def _combined(self, reduce_op: Any, combined: list[Any], exact: Sequence[int] | None = None) -> list[Any]:  # noqa: ANN401
        op = Op.SUM if reduce_op == ReduceOp.SUM else Op.AVERAGE
        dense = [number for number, value in enumerate(combined) if not isinstance(value, tf.IndexedSlices)]
        if dense:
            among = None if exact is None else tuple(place for place, number in enumerate(dense) if number in exact)
            results = self._operations.reduce(op, [combined[number] for number in dense], exact=among)
            for number, result in zip(dense, results, strict=True):
                combined[number] = result
        return [self._rows(op, v) if isinstance(v, tf.IndexedSlices) else v for v in combined]

    def _rows(self, op: Op, rows: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return all workers' rows; a row of several workers appears several times, as in any IndexedSlices."""
        values = tf.concat(self._operations.gather(rows.values), 0)
        indices = tf.concat(self._operations.gather(rows.indices), 0)
        if op is Op.AVERAGE:
            values /= tf.cast(self._operations.num_workers, values.dtype)
        return tf.IndexedSlices(values, indices, rows.dense_shape)


# --- types on the wire


def wire_type_of(dtype: tf.DType, what: str) -> DType:
    """Return a tensor's type on the wire; raise TypeError, with the remedy, if devices cannot add it."""
    wire = _WIRE_OF.get(dtype)
    if wire is None:
        known = ", ".join(sorted(known.name for known in _WIRE_OF))
        raise TypeError(
            f"{what}: tensors of {dtype.name} cannot be synchronised; cast them, tf.cast(x, tf.int32) of a tf.bool "
            f"for instance (known: {known})"
        )
    return wire


def as_tensor(value: Any, like: Any = None) -> Any:  # noqa: ANN401
    """Return a tensor, rows or a replica's value unchanged, or a number as a tensor of the type of `like`."""
    if tf.is_tensor(value) or has_replica_values(value):
        return value
    return tf.convert_to_tensor(value, dtype=getattr(like, "dtype", None))


def require_bits(dtype: tf.DType, what: str) -> None:
    """Raise TypeError, with the remedy, if a tensor is no block of bytes that can be sent."""
    if dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(f"{what}: a tensor of tf.{dtype.name} cannot be sent; make numbers of it, by tf.io.decode_raw")


def stored(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor in the type in which the wire stores it: bfloat16 as uint16."""
    return tf.bitcast(tensor, tf.uint16) if tensor.dtype == tf.bfloat16 else tensor
