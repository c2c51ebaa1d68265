# Pure: no MPI, threads, clock or environment.
"""Bytes of a paged model, and their places on an optimizer node's disks (LuWu 3.3).

A unit's tensors lie end to end in one flat array, each from a multiple of 64 elements on, and the array is cut into
chunks, which are read, updated and written one by one: a unit is never whole in memory.

[Note: a chunk's image] On disk a chunk is its pulled parameters, then a header of one block, then the rest:

    pulled: the parameters in the type in which workers compute | header | master copy | state 0 | state 1 ...

each rounded up to whole blocks. A pull reads the first two, an update the last two, and both write all in one piece.
Where workers compute in float32, they pull the master copy.

[Note: two slots] Each chunk has two places. The committed version lies in one and is never written to; updates write
into the other, from the committed version at first, and then in place until a commit makes it the committed one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from coarse.errors import ConfigError
from coarse.protocol.dtypes import DType
from coarse.protocol.units import KIB

BLOCK_BYTES = 4096
"""Block size of direct reads and writes, in place, length and memory."""
ALIGN_ELEMENTS = 64
"""Alignment of a tensor's first element in its unit's flat array, and of a chunk's."""
CHUNK_ELEMENTS = 512 * KIB
NUM_SLOTS = 2
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class PagedTensor:
    """Parameter tensor of a model."""

    name: str
    shape: tuple[int, ...]
    is_trainable: bool = True

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True)
class PagedUnit:
    """Parameters that are pulled, pushed and updated together."""

    name: str
    tensors: tuple[PagedTensor, ...]

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Index of each tensor's first element in the flat array."""
        return (0, *accumulate(_aligned(one.num_elements) for one in self.tensors))[:-1]

    @cached_property
    def num_elements(self) -> int:
        """Number of elements of the flat array."""
        return sum(_aligned(one.num_elements) for one in self.tensors)

    @cached_property
    def is_trainable(self) -> bool:
        """True if any tensor is trainable; else the unit is never written again."""
        return any(one.is_trainable for one in self.tensors)


class Piece(NamedTuple):
    """Elements [begin, end) of a chunk, which are those of one tensor from `first` on."""

    tensor: int
    first: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class PagedModel:
    """All units, and the agreement of all ranks on their storage."""

    units: tuple[PagedUnit, ...]
    pulled: DType = DType.FLOAT32
    """Type in which workers compute; for an all-reduce, the type of the combined values."""
    num_states: int = 2
    """Number of arrays of optimizer state beside the parameters, float32."""
    num_devices: int = 1
    """Number of optimizer nodes, among which units are divided."""
    chunk_elements: int = CHUNK_ELEMENTS

    def __post_init__(self) -> None:
        if self.chunk_elements < ALIGN_ELEMENTS or self.chunk_elements % ALIGN_ELEMENTS:
            raise ConfigError(
                f"chunk_elements must be a multiple of {ALIGN_ELEMENTS}, got {self.chunk_elements}",
                key="chunk_elements",
            )
        names = [tensor.name for unit in self.units for tensor in unit.tensors]
        if len(set(names)) < len(names):
            doubled = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"the parameter {doubled!r} comes twice; give each its own name", key="units")
        if not names:
            raise ConfigError("the model has no parameters to keep", key="model")

    @cached_property
    def device_of(self) -> tuple[int, ...]:
        """Optimizer node that keeps each unit: the first of those with the fewest bytes so far."""
        filled = [0] * self.num_devices
        found = []
        for unit in range(len(self.units)):
            device = filled.index(min(filled))
            filled[device] += sum(self.image(unit, chunk).nbytes for chunk in range(self.num_chunks(unit)))
            found.append(device)
        return tuple(found)

    def units_of(self, device: int) -> tuple[int, ...]:
        """Return the units that an optimizer node keeps."""
        return tuple(unit for unit, keeper in enumerate(self.device_of) if keeper == device)

    def num_chunks(self, unit: int) -> int:
        """Return the number of a unit's chunks."""
        return -(-self.units[unit].num_elements // self.chunk_elements)

    def elements(self, unit: int, chunk: int) -> tuple[int, int]:
        """Return the first element of a chunk in its unit's flat array, and the one behind its last."""
        begin = chunk * self.chunk_elements
        return begin, min(begin + self.chunk_elements, self.units[unit].num_elements)

    def chunks(self, unit: int) -> list[tuple[int, int]]:
        """Return `elements` of all chunks of a unit."""
        return [self.elements(unit, chunk) for chunk in range(self.num_chunks(unit))]

    def image(self, unit: int, chunk: int) -> "ChunkImage":
        """Return the layout of a chunk's bytes on disk."""
        begin, end = self.elements(unit, chunk)
        return _image(end - begin, self.pulled, self.num_states if self.units[unit].is_trainable else 0)

    def pieces(self, unit: int, chunk: int) -> Iterator[Piece]:
        """Yield the piece of each tensor that lies in a chunk."""
        begin, end = self.elements(unit, chunk)
        of = self.units[unit]
        for place, (tensor, start) in enumerate(zip(of.tensors, of.begins, strict=True)):
            first, past = max(begin, start), min(end, start + tensor.num_elements)
            if first < past:
                yield Piece(place, first - start, first - begin, past - begin)

    @property
    def num_parameters(self) -> int:
        """Number of elements of all tensors, without those that align them."""
        return sum(tensor.num_elements for unit in self.units for tensor in unit.tensors)

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON values, which `from_json` reads back."""
        return {
            "units": [
                [unit.name, [[one.name, list(one.shape), one.is_trainable] for one in unit.tensors]]
                for unit in self.units
            ],
            "pulled": self.pulled.label,
            "num_states": self.num_states,
            "num_devices": self.num_devices,
            "chunk_elements": self.chunk_elements,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "PagedModel":
        """Return the model that `to_json` described."""
        units = tuple(
            PagedUnit(name, tuple(PagedTensor(tensor, tuple(shape), trains) for tensor, shape, trains in tensors))
            for name, tensors in document["units"]
        )
        return cls(
            units=units,
            pulled=DType[document["pulled"].upper()],
            num_states=document["num_states"],
            num_devices=document["num_devices"],
            chunk_elements=document["chunk_elements"],
        )

    @cached_property
    def digest(self) -> str:
        """Digest of all of this, equal where a folder of one model can be read by the other."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()


@dataclass(frozen=True)
class ChunkImage:
    """Parts of a chunk's bytes on disk, and in a buffer; see [Note: a chunk's image]."""

    num_elements: int
    pulled: DType
    num_states: int

    @cached_property
    def pulled_bytes(self) -> int:
        """Bytes that workers pull, without those that fill the last block."""
        return self.num_elements * self.pulled.itemsize

    @cached_property
    def header(self) -> int:
        """Offset of the header, behind the pulled part."""
        return _blocks(self.pulled_bytes)

    @cached_property
    def pull_nbytes(self) -> int:
        """Bytes that a pull reads, from the beginning."""
        return self.header + BLOCK_BYTES

    @property
    def has_master(self) -> bool:
        """True if the master copy is separate from the pulled part."""
        return self.pulled is not DType.FLOAT32

    @cached_property
    def state_bytes(self) -> int:
        """Bytes behind the header: the master copy where it is separate, and the states."""
        return (self.num_states + self.has_master) * self.num_elements * _FLOAT_BYTES

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the whole image, which is a number of blocks."""
        return self.pull_nbytes + _blocks(self.state_bytes)

    @property
    def update_begin(self) -> int:
        """Offset of the first byte that an update reads; it reads on to the end."""
        return self.header if self.has_master else 0


@lru_cache(maxsize=1 << 12)
def _image(num_elements: int, pulled: DType, num_states: int) -> ChunkImage:
    """Return one image for all chunks of a length, so that its sizes are computed once."""
    return ChunkImage(num_elements, pulled, num_states)


class Place(NamedTuple):
    """Place of a chunk's image: in a folder, at an offset of its file."""

    folder: int
    offset: int


class DiskLayout:
    """Files of one optimizer node: chunks go round its folders, both slots of each."""

    def __init__(self, model: PagedModel, device: int, num_folders: int) -> None:
        if num_folders < 1:
            raise ConfigError("storage names no folder; name one at least", key="storage")
        self.model = model
        self.device = device
        self.num_folders = num_folders
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        """(Unit, chunk) -> (folder, offset of its first slot)."""
        self._sums: dict[tuple[int, int], Place] = {}
        self.file_bytes = [0] * num_folders
        """Bytes of each folder's file with all slots."""
        self.sum_file_bytes = [0] * num_folders
        """Bytes of each folder's file that has room for a float32 sum of gradients of each trainable chunk."""
        number = 0
        for unit in model.units_of(device):
            for chunk in range(model.num_chunks(unit)):
                folder = number % num_folders
                number += 1
                image = model.image(unit, chunk)
                self._places[unit, chunk] = folder, self.file_bytes[folder]
                self.file_bytes[folder] += image.nbytes * NUM_SLOTS
                if model.units[unit].is_trainable:
                    self._sums[unit, chunk] = Place(folder, self.sum_file_bytes[folder])
                    self.sum_file_bytes[folder] += _blocks(image.num_elements * _FLOAT_BYTES)

    def place(self, unit: int, chunk: int, slot: int) -> Place:
        """Return the place of a chunk's image."""
        folder, offset = self._places[unit, chunk]
        return Place(folder, offset + slot * self.model.image(unit, chunk).nbytes)

    def sum_place(self, unit: int, chunk: int) -> Place:
        """Return the place of a trainable chunk's sum of gradients, in the file of sums."""
        return self._sums[unit, chunk]

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Return all (unit, chunk)s, in order."""
        return iter(self._places)


def sum_nbytes(num_elements: int) -> int:
    """Return the bytes that a chunk's float32 sum of gradients takes on disk."""
    return _blocks(num_elements * _FLOAT_BYTES)


class StepBytes(NamedTuple):
    """Bytes that a training step reads from and writes to disks."""

    read: int
    written: int


def step_bytes(
    model: PagedModel, device: int, *, num_passes: int = 1, num_pulls: int = 2, sums_on_disk: Sequence[int] = ()
) -> StepBytes:
    """Return one optimizer node's disk bytes in a step that uses every unit once in each pass.

    `num_pulls`: pulls of each unit in a pass, forward's and backward's. `sums_on_disk`: units whose sums of gradients
    lie there from the push to the update.
    """
    read = written = 0
    for unit in model.units_of(device):
        for chunk in range(model.num_chunks(unit)):
            image = model.image(unit, chunk)
            read += image.pull_nbytes * num_pulls * num_passes
            if not model.units[unit].is_trainable:
                continue
            read += image.nbytes - image.update_begin
            written += image.nbytes
            if unit in sums_on_disk:
                read += sum_nbytes(image.num_elements) * num_passes
                written += sum_nbytes(image.num_elements) * num_passes
    return StepBytes(read, written)


def _aligned(num_elements: int) -> int:
    return -(-max(num_elements, 1) // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
