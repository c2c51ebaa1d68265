"""Interface on numpy arrays: push, pull and push_pull; state in device memory, held by snapshots (COARSE IV-A).

weights = coarse.state_array("weights", (4096, 4096), np.float32)
for step in range(num_steps):
    gradient = coarse.push_pull(gradient_of(weights), "gradient")
    coarse.before_overwrite()                  # at once, unless a snapshot is being copied
    weights -= rate * gradient
    if step % 1000 == 0:                       # or at each epoch's end
        coarse.snapshot("checkpoints/last", step=step)
"""

import json
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike

from coarse.client.client import Client
from coarse.client.grouped import GroupHandle, packs_of
from coarse.client.handle import Handle
from coarse.client.protocol import ToDevice
from coarse.gpu.available import empty_like, gpu_array_of
from coarse.gpu.interface import AnyArray, is_on_gpu
from coarse.protocol.dtypes import DType, Op, dtype_of
from coarse.protocol.records import URGENT, Descriptor, StatisticsRequest
from coarse.session import current

if TYPE_CHECKING:
    from mpi4py import MPI

MAX_NAME_CHARACTERS = 1000
"""Largest length of a name, so that a record with any such name fits its ring in every encoding of its characters."""
_BARRIER = Descriptor("coarse/barrier", 5, int(Op.SUM), (1,), URGENT)


def rank() -> int:
    """Return this worker's number, from 0."""
    index = current().client_index
    assert index is not None
    return index


def size() -> int:
    """Return the number of workers."""
    return current().placement.num_clients


def local_rank() -> int:
    """Return this worker's number among the workers of its node."""
    cluster = current().placement.cluster
    return cluster.workers_on(cluster.worker_nodes[rank()]).index(rank())


def local_size() -> int:
    """Return the number of workers on this node."""
    cluster = current().placement.cluster
    return len(cluster.workers_on(cluster.worker_nodes[rank()]))


def workers_comm() -> "MPI.Intracomm":
    """Return the script's own MPI communicator (mpi4py) of the workers, without memory devices.

    A worker's rank in it is `rank()`.

    Under `coarse run` MPI.COMM_WORLD is such a communicator, too.
    """
    return current().require_users_comm()


def barrier() -> None:
    """Return once all workers have called it."""
    token = np.zeros(1, np.int64)
    current().require_client().push_pull_again(_BARRIER, token, token).wait()


def profile() -> None:
    """Measure the routes to the proxies again; all workers call it between the same two iterations.

    Every key follows the new routing tables and partition sizes from its next push on (COARSE III-E,
    dynamic profiling). `init` does this once. Raises InFlightError where a result was not taken.
    """
    current().profile()


def push(array: np.ndarray, name: str, op: Op = Op.AVERAGE, priority: int = 0) -> Handle:
    """Contribute to the next version of `name`, which is complete once all workers have pushed.

    The array (any shape, also non-contiguous) has been copied when this returns; on a GPU, before its stream goes on.
    """
    array = _own(array, name)
    return current().require_client().push(describe(array, name, op, priority), array)


def pull(name: str, out: np.ndarray | None = None) -> Handle:
    """Return a handle on the version of `name` after this worker's last push, else on the current one."""
    return current().require_client().pull(_checked_name(name), None if out is None else _own(out, name))


def push_pull(
    array: np.ndarray, name: str, op: Op = Op.AVERAGE, priority: int = 0
) -> np.ndarray:
    """Combine all workers' arrays into a new array; on the same GPU for one on a GPU (docs/gpu.md).

    After a StallError the same call, with the same values, goes on waiting for the same result.
    """
    client, array = current().require_client(), _own(array, name)
    descriptor = describe(array, name, op, priority)
    return client.push_pull_again(descriptor, array, _target(client, descriptor, array)).wait()


def push_pull_async(
    array: np.ndarray,
    name: str,
    op: Op = Op.AVERAGE,
    priority: int = 0,
    out: np.ndarray | None = None,
) -> Handle:
    """Start a push_pull; `wait` returns the result, in `out` if given.

    `out` may be `array` itself, which must be left alone until `wait` has returned. Else the array has been copied when
    this returns. An array made by `device_array` is not copied: its result is found in place.
    Keys of higher priority are synchronised first where several are ready.
    """
    own = _own(array, name)
    result = None if out is None else own if out is array else _own(out, name)
    client = current().require_client()
    descriptor = describe(own, name, op, priority)
    return client.push_pull(descriptor, own, _target(client, descriptor, own) if result is None else result)


def grouped_push_pull(
    arrays: Sequence[np.ndarray], name: str, op: Op = Op.AVERAGE, priority: int = 0
) -> list[np.ndarray]:
    """Combine each of several arrays with all workers', and return new arrays.

    The arrays travel as one tensor for each type, which suits many small arrays. All workers give equally many, of the
    same types and shapes in the same order. After a StallError the same call continues, as that of push_pull does.
    """
    return _grouped(arrays, name, op, priority, is_waited=True).wait()


def grouped_push_pull_async(
    arrays: Sequence[np.ndarray], name: str, op: Op = Op.AVERAGE, priority: int = 0
) -> GroupHandle:
    """Start a grouped_push_pull; the arrays have been copied on return, and `wait` returns new ones."""
    return _grouped(arrays, name, op, priority, is_waited=False)


def _grouped(arrays: Sequence[np.ndarray], name: str, op: Op, priority: int, *, is_waited: bool) -> GroupHandle:
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"{name!r}: a list of numpy arrays was wanted, {type(arrays).__name__} came; wrap it in a list")
    arrays = [_own(array, name) for array in arrays]
    kinds = tuple((_wire_type_of(array, name), array.shape) for array in arrays)
    for wire in {wire for wire, _ in kinds}:
        priority = checked(Descriptor(name, int(wire), _checked_op(name, op), (), priority)).priority
    return GroupHandle(current().require_client(), arrays, packs_of(name, kinds, op, priority), is_waited=is_waited)


def _target(client: Client, descriptor: Descriptor, array: np.ndarray) -> np.ndarray:
    """Return the array for a result without a stated place: the array itself if it is in device memory."""
    return array if client.is_device_array(descriptor, array) else empty_like(array)


def _own(array: np.ndarray, name: str) -> np.ndarray:
    """Return the array itself, or coarse's view of an array of any library in a GPU's memory.

    Raises:
        ConfigError: it is on a GPU, and there is no CuPy.
    """
    found = gpu_array_of(array)
    if found is None:
        return array
    if not found.flags.c_contiguous:
        raise ValueError(f"{name!r}: an array on a GPU must be contiguous; pass cupy.ascontiguousarray(array)")
    return cast(np.ndarray, found)


def device_array(
    name: str, shape: tuple[int, ...], dtype: DTypeLike, op: Op = Op.AVERAGE, priority: int = 0
) -> np.ndarray:
    """Return an array of `shape` in device memory, zeros at first, whose push_pull moves no bytes.

    The push_pull is that under `name`. If the device's memory is a GPU's, the array is a CuPy array.
    """
    name = _checked_name(name)
    wire, extents = dtype_of(np.empty(0, dtype)), checked_shape(name, shape)
    descriptor = checked(Descriptor(name, int(wire), _checked_op(name, op), extents, priority))
    return current().require_client().device_array(descriptor)


def forget(name: str) -> None:
    """Give back the device memory of a name; it is free once all workers have called this.

    All workers forget a name between the same two uses; it may then be used again, for another shape or
    type too. The array that `device_array` returned for it must not be touched any more. Returns at once.

    Raises:
        InFlightError: the result of this worker's last push was not taken.
    """
    current().require_client().deregister(_checked_name(name))


def statistics(*, all_devices: bool = False) -> dict[str, Any]:
    """Return bytes and seconds of this worker by key and link, and the counters of its node's devices.

    The counters are those of all nodes' devices if `all_devices` is true.

    `between_nodes` has the bytes, by purpose, that this worker's collectives (coarse.collectives) sent to and received
    from other nodes. `facts` has each worker's measurements, which it has sent to all others, and `rounds` the summing
    party of each bucket, by optimizer (docs/strategies.md).
    """
    runtime = current()
    client = runtime.require_client()
    index = client.protocol.client
    near = runtime.placement.devices_on(runtime.placement.client_nodes[index])
    asked = tuple(range(runtime.placement.num_devices)) if all_devices else near
    tokens = [client.protocol.next_token() for _ in asked]
    requests = [
        ToDevice(device if device in near else client.protocol.local_proxy, StatisticsRequest(index, device, token))
        for device, token in zip(asked, tokens, strict=True)
    ]
    replies = client.link.ask(requests, tokens, "its counters")
    keys = client.counters
    return {
        "rank": index,
        "bytes": sum(int(counts["bytes"]) for counts in keys.values()),
        "wait_s": sum(counts["wait_s"] for counts in keys.values()),
        "keys": {name: dict(counts) for name, counts in keys.items()},
        "links": client.links(),
        "between_nodes": runtime.groups.traffic.by_purpose() if runtime.groups is not None else {},
        "from_node_memory": dict(runtime.groups.node_reads) if runtime.groups is not None else {},
        "facts": [list(row) for row in runtime.facts],
        "rounds": runtime.decisions.as_plain(),
        "devices": {r.device: json.loads(r.text) for r in replies},  # type: ignore[union-attr]
    }


def describe(array: np.ndarray, name: str, op: Op, priority: int) -> Descriptor:
    """Return the descriptor of an array; if its name has an equal one, return that.

    Raises:
        TypeError: the array has a type that cannot be synchronised.
    """
    dtype = int(_wire_type_of(array, name))
    known = current().require_client().protocol.named.get(name) if type(name) is str else None
    wanted = (dtype, op, array.shape, priority, "", 0, 0)
    if known is not None and type(priority) is int and known.descriptor[1:] == wanted:
        return known.descriptor
    return checked(Descriptor(name, dtype, _checked_op(name, op), array.shape, priority))


def _wire_type_of(array: AnyArray, name: str) -> DType:
    if not isinstance(array, np.ndarray) and not is_on_gpu(array):
        raise TypeError(f"{name!r}: a numpy array was wanted, {type(array).__name__} came")
    try:
        return dtype_of(array)
    except TypeError as error:
        raise TypeError(f"{name!r}: {error}") from None


def checked(descriptor: Descriptor) -> Descriptor:
    """Return the descriptor with its priority as an int; raise TypeError or ValueError if it is unusable."""
    _checked_name(descriptor.name)
    if type(descriptor.priority) is not int:
        wanted = f"{descriptor.name!r}: priority must be an integer"
        descriptor = descriptor._replace(priority=_integer(descriptor.priority, wanted))
    if descriptor.op == Op.AVERAGE and DType(descriptor.dtype).is_integer:
        raise TypeError(
            f"{descriptor.name!r}: an average of {DType(descriptor.dtype).label} would be rounded; "
            "use coarse.Sum, or convert to a floating type"
        )
    return descriptor


def checked_shape(name: str, shape: Iterable[int]) -> tuple[int, ...]:
    """Return a shape in plain integers; raise TypeError or ValueError if no array can have it."""
    wanted = f"{name!r}: a shape must be a tuple of integers"
    if not isinstance(shape, Iterable):
        raise TypeError(f"{wanted}, got {type(shape).__name__} {shape!r}; write (n,) for n elements")
    extents = tuple(_integer(extent, wanted) for extent in shape)
    if min(extents, default=0) < 0:
        raise ValueError(f"{name!r}: no extent of a shape may be below 0, got {extents}; state it in full")
    return extents


def _integer(value: object, wanted: str) -> int:
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{wanted}, got {type(value).__name__} {value!r}; convert it by int()") from None


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name must be text, got {type(name).__name__} {name!r}")
    if not name:
        raise ValueError("a name must have at least one character, got ''; give each tensor a name of its own")
    if len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(
            f"a name may have {MAX_NAME_CHARACTERS} characters, got {len(name)}: {name[:40]!r}...; "
            "shorten it"
        )
    return name


def _checked_op(name: str, op: Op) -> int:
    try:
        return int(Op(op))
    except ValueError:
        known = "coarse.Average, Sum, Min or Max"
        raise ValueError(f"{name!r}: op must be {known}, got {op!r}") from None


def state_array(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array in device memory that is not synchronised, zeros at first; snapshots hold it.

    Call `before_overwrite` before each change of its values. A repeated call with a name returns the same array.

    Raises:
        MismatchError: the name has another shape or type.
        CapacityError: the device is full.
    """
    return state_array_of(name, shape, dtype_of(np.empty(0, dtype)))


def state_array_of(name: str, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return a `state_array` of a type that numpy may not know: bfloat16 comes as uint16."""
    return current().require_client().states.array(name, checked_shape(name, shape), dtype)


def before_overwrite(names: Collection[str] | None = None) -> None:
    """Return once these state arrays (default: all) may be overwritten.

    That is at once where no snapshot is being taken; else those that are not copied yet are copied
    first. Call it after `snapshot` and before the first change, each time.
    """
    current().require_client().states.before_overwrite(names)
