# Pure: no MPI, threads, clock or environment.
"""Declaration of a model by workers to optimizer nodes, and the division of a node's memory."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from coarse.errors import CapacityError, ConfigError
from coarse.luwu.store.fixed_point import COMBINE
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.layout import BLOCK_BYTES, PagedModel, PagedTensor, PagedUnit, sum_nbytes
from coarse.luwu.store.operations import GRADIENTS
from coarse.luwu.store.optimizer import Rules
from coarse.luwu.store.packed_chunk import packed_elements
from coarse.protocol.dtypes import DType
from coarse.protocol.units import MIB

WIRES = {"float32": DType.FLOAT32, "int64": DType.INT64, "int32-switchml": DType.INT32}
"""Type of the values that devices push to one another, for each way of adding."""
SUMS = tuple(WIRES)
KERNELS = ("numpy", "torch-fused")
NETWORKS = ("mpi", "udp")
ALL_REDUCE = "all-reduce"
"""Name in place of an optimizer's: a unit's pull gives its pushes, combined; nothing is kept."""
PUSH_WINDOW = 256
"""Number of a worker's packets that may wait to be added; the worker's own memory holds them."""
_FLOAT_BYTES = 4
_LEAST_SLOTS = 2
"""Slots of each kind: one is filled while another is emptied."""
_MOST_BUFFERS = 8
_STAGING_SLOTS = 4
_MOST_RING_BYTES = 8 * MIB
_MOST_WINDOW_BYTES = 64 * MIB
_MOST_PACKET_BYTES = 1 << 16


def require_network(network: str, loss: float) -> None:
    """Raise ConfigError where there is no such network, or it loses nothing and loss is asked for."""
    if network not in NETWORKS:
        raise ConfigError(f"network must be one of {NETWORKS}, got {network!r}", key="network")
    if not 0.0 <= loss < 1.0 or (loss and network != "udp"):
        raise ConfigError(
            f"loss is a share of datagrams below 1, of network='udp'; got {loss} of {network!r}", key="loss"
        )


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Declaration of a model, its optimizer, and the place of its states; it is equal on all workers."""

    model: PagedModel
    optimizer: str
    groups: tuple[dict[str, Any], ...]
    """Settings of each parameter group, as the first step would have them."""
    group_of: tuple[tuple[int, ...], ...]
    """Number of the group of each tensor, by unit."""
    num_workers: int
    storage: tuple[str, ...] | None
    """Folders on each optimizer node's host; None: states stay in the node's memory."""
    memory_bytes: int | None = None
    """Bytes that a node may use for buffers; None: half of those that its machine has left."""
    in_backward: bool = False
    num_passes: int = 1
    is_speculative: bool = False
    wants_norm: bool = False
    commit_every: int = 1
    resume: bool = False
    resume_if_there: bool = False
    """True to resume where the folders hold a committed step of this model, and to begin where they hold none."""
    resume_step: int | None = None
    """Committed step that training resumes from; None: the newest."""
    other_kernel: bool = False
    """True to go on with states that another kernel wrote."""
    gradients: DType = DType.FLOAT32
    """Type in which gradients are pushed."""
    sum: str = "float32"
    """One of SUMS; for an all-reduce, a key of COMBINE."""
    is_packed: bool = False
    """True if workers push packed chunks of integers, which devices of several hosts may add in any order."""
    kernel: str = "numpy"
    nodes: tuple[int, ...] = (0,)
    """Memory device of each optimizer node."""
    network: str = "mpi"
    """Network by which packets go from host to host."""
    switches: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(Memory device, those below it), where the tree to an optimizer node is more than its hosts."""
    loss: float = 0.0
    """Share of datagrams to be dropped on purpose."""
    timeline: str = ""
    """Folder on each host for traces; empty: none are made."""
    owner: str = ""
    run: str = ""
    """Name that no other training has."""

    def __post_init__(self) -> None:
        pulled = self.model.pulled
        if not self.is_all_reduce and pulled not in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16):
            raise ConfigError(f"workers compute in float32, bfloat16 or float16, got {pulled.label}", key="dtype")
        for group in self.groups:
            try:
                kernel = kernel_of(self.optimizer, group)
            except ValueError as error:
                raise ConfigError(str(error), key="optimizer") from None
            if kernel.num_states > self.model.num_states:
                raise ConfigError(
                    f"the parameter groups of {self.optimizer} keep {self.model.num_states} and {kernel.num_states} "
                    "states each; give all groups a momentum or none",
                    key="optimizer",
                )
        for name in ("num_passes", "commit_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", key=name)
        if self.in_backward and self.commit_every != 1:
            raise ConfigError(
                f"update='backward' commits every step, since what it replaces before the step has to stay; got "
                f"commit_every={self.commit_every}",
                key="commit_every",
            )
        require_network(self.network, self.loss)
        sums = tuple(COMBINE) if self.is_all_reduce else SUMS
        if self.sum not in sums:
            raise ConfigError(f"sum must be one of {sums}, got {self.sum!r}", key="sum")
        if self.kernel not in KERNELS:
            raise ConfigError(f"kernel must be one of {KERNELS}, got {self.kernel!r}", key="kernel")

    @property
    def is_all_reduce(self) -> bool:
        """True if sums go back to the workers, and nothing is kept."""
        return self.optimizer == ALL_REDUCE

    @property
    def room_remedy(self) -> str:
        """Remedy where a device has too little memory for it, for people."""
        return ("" if self.is_all_reduce else "lower memory, or ") + "raise device_capacity_bytes"

    @property
    def combine(self) -> str:
        """Combination of values that devices pass on: a key of COMBINE."""
        if self.is_all_reduce:
            return self.sum
        return "integers" if self.is_packed else "float32"

    @property
    def wire(self) -> DType:
        """Type of the values that devices push to one another."""
        if self.is_all_reduce:
            return self.model.pulled
        return WIRES[self.sum] if self.is_packed else DType.FLOAT32

    def type_of(self, array: int) -> DType:
        """Return the type in which workers push gradients, or values of an array."""
        return self.wire if self.is_packed else self.type_in_worker(array)

    def type_in_worker(self, array: int) -> DType:
        """Return the type in which workers have gradients, or values of an array."""
        return self.gradients if array == GRADIENTS else DType.FLOAT32

    @cached_property
    def pushed(self) -> PagedModel:
        """Model as it is pushed: packed chunks are longer."""
        model = self.model
        if not self.is_packed:
            return model
        units = []
        for number, unit in enumerate(model.units):
            num_elements = sum(packed_elements(end - begin) for begin, end in model.chunks(number))
            units.append(PagedUnit(unit.name, (PagedTensor(f"{number}", (num_elements,), unit.is_trainable),)))
        return replace(model, units=tuple(units), chunk_elements=packed_elements(model.chunk_elements))

    @property
    def rules(self) -> Rules:
        """Rules on the time of updates."""
        return Rules(
            in_backward=self.in_backward,
            num_passes=self.num_passes,
            is_speculative=self.is_speculative,
            commit_every=self.commit_every,
            wants_squares=self.wants_norm,
        )

    def to_json(self) -> str:
        """Return the declaration as text for the wire."""
        return json.dumps({**asdict(self), "model": self.model.to_json(), "gradients": self.gradients.label})

    @classmethod
    def from_json(cls, text: str) -> "Declaration":
        """Return the declaration of a text that `to_json` made."""
        fields = json.loads(text)
        fields["model"] = PagedModel.from_json(fields["model"])
        fields["gradients"] = DType[fields["gradients"].upper()]
        fields["groups"] = tuple(fields["groups"])
        fields["nodes"] = tuple(fields["nodes"])
        fields["group_of"] = tuple(tuple(unit) for unit in fields["group_of"])
        fields["switches"] = tuple((switch, tuple(below)) for switch, below in fields["switches"])
        fields["storage"] = None if fields["storage"] is None else tuple(fields["storage"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Use of an optimizer node's memory, in bytes and in numbers."""

    num_window: int
    """Number of chunks that were read and are being pulled."""
    num_buffers: int
    """Number of chunks that are being updated."""
    gradient_bytes: int
    """Bytes for each worker of the node in which gradients are born; 0: they are copied, chunk by chunk."""
    num_staging: int
    """Number of chunks of each worker that are being copied."""
    in_memory: tuple[int, ...]
    """Units whose sums of gradients stay in memory."""
    ring_bytes: int = 0
    """Bytes for the pushes of each device below."""
    total_bytes: int


def plan_memory(
    declaration: Declaration, device: int, num_clients: int, memory_bytes: int, num_below: int = 0
) -> MemoryPlan:
    """Divide a node's memory: first the least of training, then gradients, pulls, updates, and sums.

    Raises:
        CapacityError: it is too little.
    """
    model = declaration.model
    units = model.units_of(device)
    images = [model.image(unit, 0) for unit in units] or [model.image(0, 0)]
    pull_bytes = window_slot_bytes(model, device)
    elements = max(image.num_elements for image in images)
    buffer_bytes = max(image.nbytes for image in images) + sum_nbytes(elements)
    staging_bytes = num_clients * (_STAGING_SLOTS + 1) * staging_slot_bytes(declaration)  # one more to look at
    scratch_bytes = 3 * elements * _FLOAT_BYTES
    ring_bytes = _ring_bytes(declaration, memory_bytes // 8 // num_below) if num_below else 0
    left = memory_bytes - staging_bytes - scratch_bytes - _LEAST_SLOTS * (pull_bytes + buffer_bytes)
    left -= num_below * ring_bytes
    if left < 0:
        raise CapacityError(
            f"optimizer node {device} has {memory_bytes} bytes of memory, and needs {memory_bytes - left} for "
            f"{_LEAST_SLOTS} chunks of {model.chunk_elements} elements of each kind; raise memory, or lower "
            "chunk_elements"
        )
    num_window = num_buffers = _LEAST_SLOTS
    gradient_bytes = 0
    trainable = [model.units[unit].num_elements for unit in units if model.units[unit].is_trainable]
    for factor in () if declaration.is_packed else (1, 2):
        wanted = factor * max(trainable, default=0) * declaration.gradients.itemsize
        if num_clients * (wanted - gradient_bytes) <= left:
            left -= num_clients * (wanted - gradient_bytes)
            gradient_bytes = wanted
    most_window = 2 * max((model.num_chunks(unit) for unit in units), default=1)
    while num_window < most_window and left >= pull_bytes:
        num_window += 1
        left -= pull_bytes
    while num_buffers < _MOST_BUFFERS and left >= buffer_bytes:
        num_buffers += 1
        left -= buffer_bytes
    in_memory = []
    for unit in units:
        nbytes = model.units[unit].num_elements * _FLOAT_BYTES
        if model.units[unit].is_trainable and nbytes <= left:
            left -= nbytes
            in_memory.append(unit)
    return MemoryPlan(
        num_window=num_window,
        num_buffers=num_buffers,
        gradient_bytes=gradient_bytes,
        num_staging=_STAGING_SLOTS,
        in_memory=tuple(in_memory),
        ring_bytes=ring_bytes,
        total_bytes=memory_bytes - left,
    )


def plan_all_reduce(declaration: Declaration, device: int, num_clients: int, num_below: int) -> MemoryPlan:
    """Plan the memory of an all-reduce's root, which has a window of sums and nothing else."""
    model = declaration.model
    slot_bytes = window_slot_bytes(model, device)
    chunks = [model.num_chunks(unit) for unit in range(len(model.units))]
    num_window = max(_LEAST_SLOTS, min(2 * max(chunks), _MOST_WINDOW_BYTES // slot_bytes))
    ring_bytes = _ring_bytes(declaration, _MOST_RING_BYTES)
    staging_bytes = num_clients * (_STAGING_SLOTS + 1) * staging_slot_bytes(declaration)
    return MemoryPlan(
        num_window=num_window, num_buffers=0, gradient_bytes=0, num_staging=_STAGING_SLOTS, in_memory=(),
        ring_bytes=ring_bytes, total_bytes=num_window * slot_bytes + num_below * ring_bytes + staging_bytes,
    )  # fmt: skip


def _ring_bytes(declaration: Declaration, fair_bytes: int) -> int:
    """Return the bytes of a device's ring: at least a chunk that is added and another that comes."""
    chunk_bytes = staging_slot_bytes(declaration) + _MOST_PACKET_BYTES
    return max(min(_MOST_RING_BYTES, fair_bytes), _LEAST_SLOTS * chunk_bytes)


def plan_switch(declaration: Declaration, num_clients: int) -> MemoryPlan:
    """Plan the memory of a device that only passes on: its workers' rooms, by which alone it is bounded."""
    trainable = [unit.num_elements for unit in declaration.model.units if unit.is_trainable]
    is_copied = declaration.is_packed or declaration.is_all_reduce
    gradient_bytes = 0 if is_copied or not num_clients else max(trainable, default=0) * declaration.gradients.itemsize
    if declaration.memory_bytes is not None and num_clients * gradient_bytes > declaration.memory_bytes // 2:
        gradient_bytes = 0
    total_bytes = num_clients * (gradient_bytes + (_STAGING_SLOTS + 1) * staging_slot_bytes(declaration))
    return MemoryPlan(
        num_window=0, num_buffers=0, gradient_bytes=gradient_bytes, num_staging=_STAGING_SLOTS if num_clients else 0,
        in_memory=(), total_bytes=total_bytes,
    )  # fmt: skip


def window_slot_bytes(model: PagedModel, node: int) -> int:
    """Return the bytes of a slot of an optimizer node's window, for a pull of its largest chunk."""
    return max(model.image(unit, 0).pull_nbytes for unit in model.units_of(node) or (0,))


def staging_slot_bytes(declaration: Declaration) -> int:
    """Return the bytes of a worker's staging slot, and of its slot to look at.

    A slot holds a chunk in float32, or as it travels.
    """
    pushed = declaration.pushed
    elements = max(min(pushed.chunk_elements, unit.num_elements) for unit in pushed.units)
    nbytes = elements * max(_FLOAT_BYTES, declaration.wire.itemsize)
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def on_disk(model: PagedModel, units: Sequence[int], in_memory: Sequence[int]) -> tuple[int, ...]:
    """Return an optimizer node's units whose sums of gradients go to the disk."""
    return tuple(unit for unit in units if model.units[unit].is_trainable and unit not in in_memory)
