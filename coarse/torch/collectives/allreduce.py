"""Sums, averages and extremes of all workers' tensors, by the names and in the forms that Horovod has."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coarse.errors import ConfigError
from coarse.protocol.dtypes import Op
from coarse.torch.c10d.reduction import Operation
from coarse.torch.collectives.process_sets import ProcessSet, global_process_set, group_of, key_among, members_of
from coarse.torch.compression import NoCompression, checked_compression
from coarse.torch.differentiable import differentiable
from coarse.torch.handles import OfWork, Then, Together, Waitable
from coarse.torch.names import forget, named
from coarse.torch.push_pull import push_pull_async, push_pull_async_
from coarse.torch.tensors import has_wire_type

Product = Operation.PRODUCT
"""Elements multiplied; by the workers themselves, since memory devices only add and compare."""


class _Adasum:
    """Horovod's adaptive sum, which coarse does not have; scripts may name it where they do not use it."""

    def __repr__(self) -> str:
        return "Adasum"


Adasum = _Adasum()

ReduceOp = Op | Operation | _Adasum
_OPERATION_OF = {
    Op.SUM: Operation.SUM,
    Op.AVERAGE: Operation.AVERAGE,
    Op.MIN: Operation.MIN,
    Op.MAX: Operation.MAX,
}
_OP_OF = {operation: op for op, operation in _OPERATION_OF.items()}


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Waitable[torch.Tensor]:
    """Start an allreduce whose result is a new tensor.

    Calls are matched by name, in whatever order ranks make them; those without a name, in a process set, of Product or
    of a type that devices do not add, by the order in which they are made.

    Args:
        tensor: any shape; averages of integers are rounded toward zero.
        average: True for Average, False for Sum; instead of `op`.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: what each rank's tensor is multiplied by before, and `postscale_factor` the result.

    Raises:
        ConfigError: Adasum, or a process set that was not added.
        TypeError: a tensor that cannot be combined so.
        ValueError: both `average` and `op`.
    """
    how = operation_of(op, average)
    after = _after(how, tensor.dtype, postscale_factor, process_set)
    wire = _on_the_way(how, tensor.dtype)
    source = scaled(tensor.detach(), prescale_factor)
    if wire is not how:
        source = source.to(torch.int64)
    if not _is_for_devices(wire, source, process_set):
        return Then(_among_workers(source, wire, process_set, key_among(process_set, "allreduce", name)), after)
    key, is_unnamed = named("allreduce", name)
    return Then(push_pull_async(source, key, _OP_OF[wire]), lambda result: _taken(after(result), key, is_unnamed))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Waitable[torch.Tensor]:
    """Start an allreduce whose result `wait` leaves in `tensor`; don't touch it until then. See allreduce_async."""
    how = operation_of(op, average)
    is_plain = prescale_factor == 1.0 and _on_the_way(how, tensor.dtype) is how
    if is_plain and _is_for_devices(how, tensor, process_set):
        key, is_unnamed = named("allreduce", name)
        after = _after(how, tensor.dtype, postscale_factor, process_set)
        arriving = push_pull_async_(tensor, key, _OP_OF[how])

        def finish(result: torch.Tensor) -> torch.Tensor:
            if postscale_factor != 1.0:
                _overwrite(tensor, after(result.detach()))
            return _taken(tensor, key, is_unnamed)

        return Then(arriving, finish)
    result = allreduce_async(tensor, None, name, how, prescale_factor, postscale_factor, process_set)
    return Then(result, lambda found: _overwrite(tensor, found))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[NoCompression] = NoCompression,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All workers' tensors combined, as a new tensor, through which gradients flow. See allreduce_async.

    Raises:
        StallError: workers that do not call it within stall_timeout_s.
        MismatchError: workers whose tensors differ in shape or type.
        DeadRankError: a rank has died.
    """
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """All workers' tensors combined, in place. See allreduce_async."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Waitable[list[torch.Tensor]]:
    """Start an allreduce of each of several tensors, whose results are a list. See allreduce_async."""
    how = operation_of(op, average)
    return _each(tensors, name, lambda tensor, own_name: allreduce_async(
        tensor, None, own_name, how, prescale_factor, postscale_factor, process_set
    ))  # fmt: skip


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Waitable[list[torch.Tensor]]:
    """Start an allreduce of each of several tensors, in place. See allreduce_async."""
    how = operation_of(op, average)
    return _each(tensors, name, lambda tensor, own_name: allreduce_async_(
        tensor, None, own_name, how, prescale_factor, postscale_factor, process_set
    ))  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[NoCompression] = NoCompression,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Each of several tensors combined with the other workers', as new tensors. See allreduce."""
    how, chosen = operation_of(op, average), checked_compression(compression)

    def run(values: Sequence[torch.Tensor], of: str | None = name) -> list[torch.Tensor]:
        compressed = [chosen.compress(value) for value in values]
        started = _each([value for value, _ in compressed], of, lambda tensor, own_name: allreduce_async(
            tensor, None, own_name, how, prescale_factor, postscale_factor, process_set
        ), is_alone=len(values) == 1)  # fmt: skip
        return [
            chosen.decompress(result, dtype)
            for result, (_, dtype) in zip(started.wait(), compressed, strict=True)
        ]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if how not in (Operation.SUM, Operation.AVERAGE):
            raise TypeError(f"no gradient goes through an allreduce by {how.name}; call it on tensor.detach()")
        return run([gradient.contiguous() for gradient in gradients], name and f"{name}.gradient")

    return differentiable(run, back, listed_tensors(tensors))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Each of several tensors combined with the other workers', in place. See allreduce_async."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp = Op.AVERAGE, process_set: ProcessSet = global_process_set
) -> Waitable[torch.Tensor]:
    """Start the sum (or average) of sparse COO tensors, of which each rank gathers all; the result is coalesced.

    Calls are matched by the order in which they are made.
    """
    how = operation_of(op, None)
    if how not in (Operation.SUM, Operation.AVERAGE) or tensor.layout is not torch.sparse_coo:
        raise TypeError(f"{name!r}: sparse COO tensors can be summed or averaged, {tensor.layout} by {how.name} came")
    result = tensor.detach().clone()
    arriving = OfWork(group_of(process_set).allreduce([result], torch.distributed.ReduceOp.SUM), result)
    divisor = len(members_of(process_set)) if how is Operation.AVERAGE else 1
    return Then(arriving, lambda total: (total / divisor).coalesce() if divisor > 1 else total.coalesce())


# --- within


def operation_of(op: Any, average: bool | None) -> Operation:  # noqa: ANN401
    """The operation that a call asks for."""
    if average is not None and op is not None:
        raise ValueError(f"give average={average} or op={op!r}, not both")
    if op is None:
        return Operation.SUM if average is False else Operation.AVERAGE
    if isinstance(op, _Adasum):
        raise ConfigError("coarse has no Adasum; use op=Average or Sum")
    if isinstance(op, Operation):
        return op
    try:
        return _OPERATION_OF[Op(op)]
    except ValueError:
        raise ValueError(f"op must be Average, Sum, Min, Max or Product of coarse.torch, got {op!r}") from None


def _on_the_way(how: Operation, dtype: torch.dtype) -> Operation:
    """What is done before the result is finished here: an average of integers is a sum, in int64, until then."""
    is_integer = not dtype.is_floating_point and not dtype.is_complex
    return Operation.SUM if how is Operation.AVERAGE and is_integer else how


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times a factor; integers are multiplied in float64 and cut."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor * factor
    return (tensor.double() * factor).to(tensor.dtype)


def _after(
    how: Operation, dtype: torch.dtype, factor: float, process_set: ProcessSet
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What is still to be made of a result that has come."""
    is_whole = _on_the_way(how, dtype) is not how
    divisor = len(members_of(process_set)) if is_whole else 1
    if is_whole and dtype is torch.bool:
        raise TypeError("truth values have no average; use op=Sum (which one of them is true), Min or Max")

    def finish(result: torch.Tensor) -> torch.Tensor:
        if divisor > 1:
            result = torch.div(result, divisor, rounding_mode="trunc")
        return scaled(result.to(dtype), factor)

    return finish


def _is_for_devices(how: Operation, tensor: torch.Tensor, process_set: ProcessSet) -> bool:
    """Whether the memory devices can combine it; else the workers do."""
    return process_set is global_process_set and how in _OP_OF and has_wire_type(tensor.dtype)


def _among_workers(
    source: torch.Tensor, how: Operation, process_set: ProcessSet, key: str
) -> Waitable[torch.Tensor]:
    """A reduction by the workers, under way on a copy."""
    result = source.clone(memory_format=torch.contiguous_format)
    return group_of(process_set).reduce_in_place(result, how, key)


def _taken(result: torch.Tensor, key: str, is_unnamed: bool) -> torch.Tensor:
    if is_unnamed:
        forget(key)
    return result


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        tensor.copy_(values)
    return tensor


def _each(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    start: Callable[[torch.Tensor, str | None], Waitable[torch.Tensor]],
    *,
    is_alone: bool = False,
) -> Together[torch.Tensor]:
    """A call of each tensor, by names that its place is a part of."""
    listed = listed_tensors(tensors)
    names = [name if is_alone or name is None else f"{name}.{place}" for place in range(len(listed))]
    return Together([start(tensor, own) for tensor, own in zip(listed, names, strict=True)])


def listed_tensors(tensors: object) -> list[torch.Tensor]:
    """The tensors of a grouped call; TypeError where one tensor came."""
    if isinstance(tensors, list | tuple):
        return list(tensors)
    raise TypeError(f"a list of tensors was wanted, {type(tensors).__name__} came; wrap it in a list")
