"""Sums, averages and extremes of all workers' tensors, by Horovod's names and in its forms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from coarse.arrays import forget
from coarse.client.grouped import GroupHandle, packs_of
from coarse.errors import ConfigError
from coarse.protocol.dtypes import Op
from coarse.protocol.units import MIB
from coarse.session import current
from coarse.torch.c10d.reduction import Operation
from coarse.torch.compression import NoCompression, checked_compression
from coarse.torch.device_state import before_writing_to
from coarse.torch.differentiable import differentiable
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, group_of, key_among, members_of
from coarse.torch.handles import Then, Together, Waitable
from coarse.torch.names import named
from coarse.torch.push_pull import push_pull_async, push_pull_async_
from coarse.torch.tensors import array_of, has_wire_type, on_host, tensor_of, wire_type_of

Product = Operation.PRODUCT
"""Product of elements, computed by the workers themselves, since memory devices only add and compare."""


_FUSED_BELOW_BYTES = 1 * MIB
"""Bytes below which tensors of a grouped call travel as one: copying them costs less than pushing each."""


class _Adasum:
    """Adaptive sum of Horovod, which coarse does not have; scripts may name it where they do not use it."""

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
Finish = Callable[[torch.Tensor], torch.Tensor]
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

    Calls are matched by name, in any order of the ranks' calls; those without a name, in a process set, of Product or
    of a type that devices do not add, by the order in which they are made.

    Args:
        tensor: any shape; averages of integers are rounded toward zero.
        average: True for Average, False for Sum; instead of `op`.
        op: Average (the default), Sum, Min, Max or Product.
        name: name by which calls are matched.
        prescale_factor: factor of each rank's tensor before the combination.
        postscale_factor: factor of the result.
        process_set: the workers whose tensors are combined.

    Raises:
        ConfigError: Adasum, or a process set that was not added.
        TypeError: a tensor that cannot be combined so.
        ValueError: both `average` and `op`.
    """
    source, wire, after = on_the_way(
        tensor, operation_of(op, average), prescale_factor, postscale_factor, process_set
    )
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
    """Start an allreduce whose result `wait` leaves in `tensor`; see allreduce_async.

    Don't touch the tensor until then.
    """
    how = operation_of(op, average)
    is_plain = prescale_factor == 1.0 and not _is_whole(how, tensor.dtype)
    if is_plain and _is_for_devices(how, tensor, process_set):
        key, is_unnamed = named("allreduce", name)
        arriving = push_pull_async_(tensor, key, _OP_OF[how])

        def finish(result: torch.Tensor) -> torch.Tensor:
            if postscale_factor != 1.0:
                _overwrite(tensor, scaled(result.detach(), postscale_factor))
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
    """Return all workers' tensors combined, as a new tensor, through which gradients flow.

    The details are those of allreduce_async.

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
    """Combine all workers' tensors in place; see allreduce_async."""
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
    """Start an allreduce of each of several tensors; small ones travel as one.

    The results are a list; see allreduce_async.
    """
    how = operation_of(op, average)
    rest = how, prescale_factor, postscale_factor, process_set
    given = each(tensors, name)
    small = [place for place, (tensor, _) in enumerate(given) if _is_small(tensor, how, process_set)]
    if len(small) < 2:
        return Together([allreduce_async(tensor, None, of, *rest) for tensor, of in given])
    fused = _fused_allreduce([given[place][0] for place in small], name, *rest)
    apart = sorted(set(range(len(given))) - set(small))
    others = [allreduce_async(given[place][0], None, given[place][1], *rest) for place in apart]
    return Then(Together[Any]([fused, *others]), lambda found: _in_order([*small, *apart], found))


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Waitable[list[torch.Tensor]]:
    """Start an allreduce of each of several tensors, in place; small ones travel as one.

    The details are those of allreduce_async.
    """
    how = operation_of(op, average)
    rest = how, prescale_factor, postscale_factor, process_set
    given = each(tensors, name)
    if sum(_is_small(tensor, how, process_set) for tensor, _ in given) < 2:
        return Together([allreduce_async_(tensor, None, of, *rest) for tensor, of in given])
    arriving = grouped_allreduce_async(tensors, None, name, *rest)
    targets = [tensor for tensor, _ in given]
    return Then(arriving, lambda found: list(map(_overwrite, targets, found)))


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
    """Return each of several tensors combined with the other workers', as new tensors; see allreduce."""
    how, chosen = operation_of(op, average), checked_compression(compression)

    def run(values: Sequence[torch.Tensor], of: str | None = name) -> list[torch.Tensor]:
        compressed = [chosen.compress(value) for value in values]
        found = grouped_allreduce_async(
            [value for value, _ in compressed], None, of, how, prescale_factor, postscale_factor, process_set
        ).wait()
        return [chosen.decompress(result, dtype) for result, (_, dtype) in zip(found, compressed, strict=True)]

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
    """Combine each of several tensors with the other workers', in place; see allreduce_async."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp = Op.AVERAGE, process_set: ProcessSet = global_process_set
) -> Waitable[torch.Tensor]:
    """Start the sum (or average) of sparse COO tensors; the result is coalesced.

    Each rank gathers all of them.

    Calls are matched by the order in which they are made.
    """
    how = operation_of(op, None)
    if how not in (Operation.SUM, Operation.AVERAGE) or tensor.layout is not torch.sparse_coo:
        raise TypeError(f"{name!r}: sparse COO tensors can be summed or averaged, {tensor.layout} by {how.name} came")
    arriving = group_of(process_set).sum_sparse(tensor.detach().clone(), name)
    divisor = len(members_of(process_set)) if how is Operation.AVERAGE else 1
    return Then(arriving, lambda total: (total / divisor).coalesce() if divisor > 1 else total.coalesce())


# --- within


def operation_of(op: Any, average: bool | None) -> Operation:  # noqa: ANN401
    """Return the operation that a call asks for."""
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


def _is_whole(how: Operation, dtype: torch.dtype) -> bool:
    """Return whether a call is an average of integers.

    That is a sum, in int64, until the result is finished here.
    """
    return how is Operation.AVERAGE and not dtype.is_floating_point and not dtype.is_complex


def on_the_way(
    tensor: torch.Tensor, how: Operation, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> tuple[torch.Tensor, Operation, Finish]:
    """Return the tensor that travels, its operation on the way, and the function that makes the result.

    Raises:
        TypeError: an average of truth values.
    """
    dtype, is_whole = tensor.dtype, _is_whole(how, tensor.dtype)
    if is_whole and dtype is torch.bool:
        raise TypeError("truth values have no average; use op=Sum (which one of them is true), Min or Max")
    divisor = len(members_of(process_set)) if is_whole else 1
    source = scaled(tensor.detach(), prescale_factor)

    def finish(result: torch.Tensor) -> torch.Tensor:
        if divisor > 1:
            result = torch.div(result, divisor, rounding_mode="trunc")
        return scaled(result.to(dtype), postscale_factor)

    return (source.to(torch.int64), Operation.SUM, finish) if is_whole else (source, how, finish)


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the tensor times a factor; integers are multiplied in float64 and cut."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor * factor
    return (tensor.double() * factor).to(tensor.dtype)


def _is_for_devices(how: Operation, tensor: torch.Tensor, process_set: ProcessSet) -> bool:
    """Return whether the memory devices can combine a tensor; else the workers do."""
    return process_set is global_process_set and how in _OP_OF and has_wire_type(tensor.dtype)


def _is_small(tensor: torch.Tensor, how: Operation, process_set: ProcessSet) -> bool:
    """Return whether a tensor travels with others of its call, all combined by the same operation."""
    is_tensor = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    is_plain = is_tensor and not _is_whole(how, tensor.dtype) and _is_for_devices(how, tensor, process_set)
    return is_plain and tensor.nbytes < _FUSED_BELOW_BYTES


def _fused_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    how: Operation,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Waitable[list[torch.Tensor]]:
    """Start allreduces of small tensors that devices combine, as one of each type."""
    key, is_unnamed = named("allreduce", name)
    ways = [on_the_way(tensor, how, prescale_factor, postscale_factor, process_set) for tensor in tensors]
    sources = [on_host(source) for source, _, _ in ways]
    kinds = tuple((wire_type_of(source, key), tuple(source.shape)) for source in sources)
    packs = packs_of(key, kinds, _OP_OF[how], 0)
    arriving = GroupHandle(current().require_client(), [array_of(source) for source in sources], packs)

    def finish(arrays: list[np.ndarray]) -> list[torch.Tensor]:
        found = [tensor_of(array, wire) for array, (wire, _) in zip(arrays, kinds, strict=True)]
        for pack in packs if is_unnamed else ():
            forget(pack.descriptor.name)
        return [
            after(result.to(tensor.device))
            for result, tensor, (_, _, after) in zip(found, tensors, ways, strict=True)
        ]

    return Then(arriving, finish)


def _in_order(places: Sequence[int], found: Sequence[Any]) -> list[torch.Tensor]:
    """Return the results of a group by their places; the first of `found` has several."""
    results = [*found[0], *found[1:]]
    return [result for _, result in sorted(zip(places, results, strict=True), key=lambda pair: pair[0])]


def _among_workers(
    source: torch.Tensor, how: Operation, process_set: ProcessSet, key: str
) -> Waitable[torch.Tensor]:
    """Start a reduction by the workers, on a copy."""
    result = source.clone(memory_format=torch.contiguous_format)
    return group_of(process_set).reduce_in_place(result, how, key)


def _taken(result: torch.Tensor, key: str, is_unnamed: bool) -> torch.Tensor:
    if is_unnamed:
        forget(key)
    return result


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    before_writing_to([tensor])
    with torch.no_grad():
        tensor.copy_(values)
    return tensor


def each(tensors: Sequence[torch.Tensor], name: str | None) -> list[tuple[torch.Tensor, str | None]]:
    """Return each tensor of a grouped call with its own name; among several, its place is a part of that."""
    listed = listed_tensors(tensors)
    if name is None or len(listed) == 1:
        return [(tensor, name) for tensor in listed]
    return [(tensor, f"{name}.{place}") for place, tensor in enumerate(listed)]


def listed_tensors(tensors: object) -> list[torch.Tensor]:
    """Return the tensors of a grouped call.

    Raises:
        TypeError: one tensor came.
    """
    if isinstance(tensors, list | tuple):
        return list(tensors)
    raise TypeError(f"a list of tensors was wanted, {type(tensors).__name__} came; wrap it in a list")
