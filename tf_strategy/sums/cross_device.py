"""How values of all workers are combined: what `tf.distribute` asks of any strategy."""

from typing import Any

import tensorflow as tf

from coarse.protocol.dtypes import Op
from tf_strategy.private_names import ReduceOp, local_value, on_devices_of
from tf_strategy.sums.operations import Operations
from tf_strategy.sums.tensors import as_tensor


class CoarseCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Sums and means by way of memory devices; every process has one replica."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    @property
    def _num_between_graph_workers(self) -> int:
        """At least 2: the base class would take one worker's values for everybody's otherwise."""
        return max(2, self._operations.num_workers)

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:  # noqa: ANN401
        """One value's sum or mean, on the devices of `destinations`."""
        (combined,) = self._combined(reduce_op, [local_value(per_replica_value)])
        return on_devices_of(combined, destinations)

    def batch_reduce(self, reduce_op: Any, value_destination_pairs: Any, options: Any = None) -> Any:  # noqa: ANN401
        """Many values' sums or means in one synchronisation; a destination (a tensor's device) may be empty."""
        return self._combined(reduce_op, [as_tensor(local_value(value)) for value, _ in value_destination_pairs])

    def sums_of_gradients(self, gradients: list[Any]) -> list[Any]:
        """The sums, in one synchronisation, of what comes again in the same shapes in every step."""
        return self._combined(ReduceOp.SUM, [as_tensor(local_value(one)) for one in gradients], come_again=True)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:  # noqa: ANN401
        """Rank 0's tensor, or rows, on the devices of `destinations`."""
        name = getattr(destinations, "name", None)
        what = "a broadcast" if name is None else f"what the first replica writes to {name!r}"
        if isinstance(tensor, tf.IndexedSlices):
            rows, indices = (self._operations.gather(part)[0] for part in (tensor.values, tensor.indices))
            first = tf.IndexedSlices(rows, indices, tensor.dense_shape)
        else:
            first = self._operations.broadcast(tensor, what)
        return on_devices_of(first, destinations)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: Any, options: Any) -> Any:  # noqa: ANN401
        """All workers' values end to end along an axis, in order of rank."""
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

    def _combined(self, reduce_op: Any, combined: list[Any], *, come_again: bool = False) -> list[Any]:  # noqa: ANN401
        op = Op.SUM if reduce_op == ReduceOp.SUM else Op.AVERAGE
        dense = [number for number, value in enumerate(combined) if not isinstance(value, tf.IndexedSlices)]
        if dense:
            results = self._operations.reduce(op, [combined[number] for number in dense], come_again=come_again)
            for number, result in zip(dense, results, strict=True):
                combined[number] = result
        return [self._rows(op, v) if isinstance(v, tf.IndexedSlices) else v for v in combined]

    def _rows(self, op: Op, rows: tf.IndexedSlices) -> tf.IndexedSlices:
        """All workers' rows; a row that several have comes several times, as in any IndexedSlices."""
        values = tf.concat(self._operations.gather(rows.values), 0)
        indices = tf.concat(self._operations.gather(rows.indices), 0)
        if op is Op.AVERAGE:
            values /= tf.cast(self._operations.num_workers, values.dtype)
        return tf.IndexedSlices(values, indices, rows.dense_shape)
