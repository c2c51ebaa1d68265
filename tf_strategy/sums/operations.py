"""Synchronisation as TensorFlow operations: pushed bucket by bucket as gradients become ready, waited for in order.

[Note: order] Every synchronisation of a graph begins with an update of one variable, the ticket, and ends with another.
TensorFlow keeps updates of one variable in the order of the program, through nested functions and loops too, so that
synchronisations follow one another alike on all ranks; within one, each bucket is pushed as soon as its own gradients
are there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType, Op
from tf_strategy.private_names import jit_compiled_function
from tf_strategy.sums.reduction import Tensors, members_of
from tf_strategy.sums.rounds import Rounds
from tf_strategy.sums.tensors import require_bits, stored, wire_type_of

Arrays = list[np.ndarray]


class Operations:
    """What the strategy's reductions are made of; in eager mode they run at once."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.num_workers = rounds.num_workers
        self.rank = rounds.rank
        with tf.init_scope(), tf.device("CPU:0"):
            self._ticket = tf.Variable(0, dtype=tf.int64, trainable=False, name="coarse_ticket")

    # --- sums and means

    def reduce(self, op: Op, tensors: Sequence[tf.Tensor], *, come_again: bool = False) -> list[tf.Tensor]:
        """The sums or means over all workers, of the same shapes and types.

        What a graph knows the shapes of has device memory of its own, and so have tensors that `come_again` in
        these shapes in every step, as gradients do; all other tensors share some, and may be of any shapes.

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
                reduced = self._now_in_buckets if come_again else self._rounds.reduce
                found = reduced(Tensors(op, wires, shapes), [tensor.numpy() for tensor in raw])
                results = [tf.convert_to_tensor(array) for array in found]
            elif all(tensor.shape.is_fully_defined() for tensor in tensors):
                shapes = tuple(tuple(tensor.shape.as_list()) for tensor in tensors)
                results = self._in_buckets(Tensors(op, wires, shapes), raw)
            else:
                results = self._at_once(op, wires, raw)
        return [_as(result, like) for result, like in zip(results, tensors, strict=True)]

    def _now_in_buckets(self, tensors: Tensors, arrays: Arrays) -> Arrays:
        buckets = [members_of(plan) for plan in tensors.plans(self._rounds.bucket_bytes)]
        for bucket, members in enumerate(buckets):
            self._rounds.push(tensors, bucket, [arrays[number] for number in members])
        results: dict[int, np.ndarray] = {}
        for bucket, members in enumerate(buckets):
            results |= zip(members, self._rounds.take(tensors, bucket), strict=True)
        return [results[number] for number in range(len(arrays))]

    def _in_buckets(self, tensors: Tensors, raw: list[tf.Tensor]) -> list[tf.Tensor]:
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

    def _pushed(self, tensors: Tensors, bucket: int, raw: list[tf.Tensor]) -> tf.Tensor:
        """Where rounds are timed, the first push brings along how long before it the last variable's gradient came."""

        def push(*arrays: np.ndarray) -> np.int64:
            self._rounds.push(tensors, bucket, arrays[: len(raw)], *map(float, arrays[len(raw) :]))
            return np.int64(bucket)

        is_marked = bucket == 0 and self._rounds.is_timed(tensors)
        ago_s = [_seconds_between(raw[:1], raw)] if is_marked else []
        return _operation(push, [*raw, *ago_s], [tf.int64])[0]

    def _at_once(self, op: Op, wires: tuple[DType, ...], raw: list[tf.Tensor]) -> list[tf.Tensor]:
        """Tensors whose shapes are known when they come."""

        def reduced(*arrays: np.ndarray) -> Arrays:
            return self._rounds.reduce(Tensors(op, wires, tuple(array.shape for array in arrays)), arrays)

        return self._alone(reduced, raw, [tensor.dtype for tensor in raw])

    # --- from one, and of all

    def broadcast(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        """Rank 0's values on every rank; `what` names the tensor in errors."""
        require_bits(tensor.dtype, f"rank {self.rank}: {what}")
        with tf.device("CPU:0"):
            if tf.executing_eagerly():
                return tf.convert_to_tensor(self._rounds.broadcast(tensor.numpy(), what))
            self._require_no_jit()
            (result,) = self._alone(lambda array: [self._rounds.broadcast(array, what)], [tensor], [tensor.dtype])
        result.set_shape(tensor.shape)
        return result

    def gather(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Every rank's tensor, in order of rank; they may differ in the first extent."""
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
        """One operation that is a whole synchronisation."""
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
    """A stateful operation that calls a Python function on arrays."""
    results = tf.numpy_function(function, inputs, types, stateful=True)
    return list(results) if isinstance(results, list | tuple) else [results]


def _seconds_between(first: list[tf.Tensor], last: list[tf.Tensor]) -> tf.Tensor:
    """float64, from when the one tensors were there until the others were too."""
    with tf.control_dependencies(first):
        begin_s = tf.timestamp()
    with tf.control_dependencies([begin_s, *last]):
        return tf.timestamp() - begin_s


def _as(result: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    result = tf.bitcast(result, like.dtype) if result.dtype != like.dtype else result
    result.set_shape(like.shape)
    return result
