"""Executor of a PagedOptimizer's instructions: folders' reads and writes, sums, and steps in buffers.

Each instruction is one call, from any thread: two that run at once never touch the same buffer, window slot or sum.
Reads and writes of files, sums and kernels all leave the GIL to others.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coarse.luwu.store.fixed_point import Adder
from coarse.luwu.store.folder import SLOTS, SUMS, PagedFolder, aligned
from coarse.luwu.store.image import Image
from coarse.luwu.store.instructions import (
    MEMORY,
    AddSum,
    Assign,
    ClearImage,
    Look,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.kernels import Kernel
from coarse.luwu.store.layout import DiskLayout, PagedModel, sum_nbytes
from coarse.storage.checksums import Checksum

_BLOCK = 16_384
"""Elements that are squared at once: they stay in a core's cache."""


class Buffers:
    """Numbered buffers, each with room for an image and a sum of any chunk of a model."""

    def __init__(self, model: PagedModel, num_buffers: int) -> None:
        self._image_bytes = max(model.image(unit, 0).nbytes for unit in range(len(model.units)))
        most = min(model.chunk_elements, max(unit.num_elements for unit in model.units))
        self.nbytes_each = self._image_bytes + sum_nbytes(most)
        self._all = [aligned(self.nbytes_each) for _ in range(num_buffers)]

    def image(self, buffer: int) -> np.ndarray:
        """Return a buffer's image, (n,) uint8."""
        return self._all[buffer][: self._image_bytes]

    def sum(self, buffer: int, num_elements: int) -> np.ndarray:
        """Return a buffer's sum, (num_elements,) float32."""
        return self.sum_bytes(buffer, 4 * num_elements).view(np.float32)

    def sum_bytes(self, buffer: int, nbytes: int) -> np.ndarray:
        """Return a buffer's bytes of a sum, (nbytes,) uint8."""
        return self._all[buffer][self._image_bytes : self._image_bytes + nbytes]


class PagedStore:
    """Disks and buffers of one optimizer node."""

    def __init__(
        self,
        layout: DiskLayout,
        folders: Sequence[PagedFolder],
        buffers: Buffers,
        window: np.ndarray,  # (slots, bytes of the largest pull) uint8, each beginning at a block
        in_memory: Sequence[int],
        checksum: Checksum,
        kernels: Callable[[Any], Kernel],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Start with these folders and buffers.

        `kernels` makes a kernel of a group's settings. `groups` has by unit and tensor the number of its group.
        """
        self.layout = layout
        self.folders = folders
        self.buffers = buffers
        self._model = layout.model
        self._window = window
        self._sums = {unit: np.zeros(self._model.units[unit].num_elements, np.float32) for unit in in_memory}
        self._sum_checks: dict[tuple[int, int], int] = {}
        self._checksum = checksum
        self._kernels_of = kernels
        self._groups = groups
        self._kernels: tuple[str, list[Kernel]] = ("", [])
        """Kernels of the settings that were used last."""

    # --- disks

    def read_pulled(self, one: ReadPulled) -> None:
        """Read a chunk's pulled parameters into the window's slot."""
        layout = self._model.image(one.unit, one.chunk)
        buffer = self._window[one.number % len(self._window)][: layout.pull_nbytes]
        folder, offset = self._at(one.unit, one.chunk, one.at.slot)
        folder.read(SLOTS, buffer, offset)
        Image(layout, buffer).check(one.at.stamp, self._checksum, _where(folder, offset), pulled=True, states=False)

    def read_image(self, one: ReadImage) -> None:
        """Read the parts of a chunk that an update needs into the buffer."""
        layout = self._model.image(one.unit, one.chunk)
        buffer = self.buffers.image(one.buffer)
        folder, offset = self._at(one.unit, one.chunk, one.at.slot)
        begin = layout.update_begin
        folder.read(SLOTS, buffer[begin : layout.nbytes], offset + begin)
        Image(layout, buffer).check(
            one.at.stamp, self._checksum, _where(folder, offset), pulled=not layout.has_master, states=True
        )

    def clear_image(self, one: ClearImage) -> None:
        """Fill the buffer's image with zeros."""
        self.buffers.image(one.buffer)[: self._model.image(one.unit, one.chunk).nbytes] = 0

    def write_image(self, one: WriteImage) -> None:
        """Seal the buffer's image, and write it."""
        image = Image(self._model.image(one.unit, one.chunk), self.buffers.image(one.buffer))
        image.seal(one.at.stamp, self._checksum)
        folder, offset = self._at(one.unit, one.chunk, one.at.slot)
        folder.write(SLOTS, image.bytes, offset)

    def read_sum(self, one: ReadSum) -> None:
        """Read a sum into the buffer."""
        place = self.layout.sum_place(one.unit, one.chunk)
        folder = self.folders[place.folder]
        raw = self.buffers.sum_bytes(one.buffer, sum_nbytes(self._num_elements(one.unit, one.chunk)))
        folder.read(SUMS, raw, place.offset)
        if self._checksum(raw) != self._sum_checks[one.unit, one.chunk]:
            raise folder.corrupt(SUMS, place.offset)

    def write_sum(self, one: WriteSum) -> None:
        """Write the buffer's sum."""
        place = self.layout.sum_place(one.unit, one.chunk)
        raw = self.buffers.sum_bytes(one.buffer, sum_nbytes(self._num_elements(one.unit, one.chunk)))
        self._sum_checks[one.unit, one.chunk] = self._checksum(raw)
        self.folders[place.folder].write(SUMS, raw, place.offset)

    def look(self, one: Look, into: np.ndarray) -> None:
        """Read one array of a chunk, (n,) float32, into `into`."""
        if one.at is None:
            into[:] = 0.0
            return
        layout = self._model.image(one.unit, one.chunk)
        folder, offset = self._at(one.unit, one.chunk, one.at.slot)
        image = Image(layout, aligned(layout.nbytes))
        folder.read(SLOTS, image.bytes, offset)
        image.check(one.at.stamp, self._checksum, _where(folder, offset), pulled=True, states=True)
        into[:] = image.states[one.array - 1] if one.array else image.master

    # --- arithmetic

    def add_sum(self, one: AddSum, values: Sequence[np.ndarray], add: Adder) -> float:
        """Add pushed values to the sum, or put them in its place; return its square if that is wanted, else 0."""
        total = self._sum(one)
        if one.is_first:
            add(values, total)
        else:
            new = np.empty_like(total)
            add(values, new)
            total += new
        return square_of(total) if one.wants_square else 0.0

    def square_sum(self, one: SquareSum) -> float:
        """Return the sum of a sum's squares."""
        return square_of(self._sum(one))

    def update(self, one: Update) -> None:
        """Step the chunk's tensors that have gradients."""
        image = Image(self._model.image(one.unit, one.chunk), self.buffers.image(one.buffer))
        if one.has_sum:
            total = self.buffers.sum(one.buffer, self._num_elements(one.unit, one.chunk))
        else:
            total = self._sum_in_memory(one.unit, one.chunk)
        kernels = self._kernels_for(one.way.settings)
        master, states = image.master, image.states
        divisor, coefficient = np.float32(one.way.divisor), np.float32(one.way.coefficient)
        for piece in self._model.pieces(one.unit, one.chunk):
            step = one.steps[piece.tensor]
            if not step:
                continue
            part = slice(piece.begin, piece.end)
            gradient = total[part]
            with np.errstate(all="ignore"):
                if one.way.divisor != 1:
                    gradient = np.divide(gradient, divisor)
                if one.way.coefficient != 1.0:
                    gradient = np.multiply(gradient, coefficient)
            kernel = kernels[self._groups[one.unit][piece.tensor]]
            kernel.step(master[part], gradient, [state[part] for state in states], step)
        image.refresh_pulled()

    def master(self, one: Update) -> np.ndarray:
        """Return the chunk's parameters, (n,) float32, of the buffer."""
        return Image(self._model.image(one.unit, one.chunk), self.buffers.image(one.buffer)).master

    def assign(self, one: Assign) -> None:
        """Replace some tensors' part of an array of the chunk."""
        image = Image(self._model.image(one.unit, one.chunk), self.buffers.image(one.buffer))
        values = self.buffers.sum(one.buffer, self._num_elements(one.unit, one.chunk))
        array = image.states[one.array - 1] if one.array else image.master
        for piece in self._model.pieces(one.unit, one.chunk):
            if piece.tensor in one.tensors:
                array[piece.begin : piece.end] = values[piece.begin : piece.end]
        image.refresh_pulled()

    # --- within

    def _at(self, unit: int, chunk: int, slot: int) -> tuple[PagedFolder, int]:
        place = self.layout.place(unit, chunk, slot)
        return self.folders[place.folder], place.offset

    def _num_elements(self, unit: int, chunk: int) -> int:
        begin, end = self._model.elements(unit, chunk)
        return end - begin

    def _sum(self, one: AddSum | SquareSum) -> np.ndarray:
        if one.buffer == MEMORY:
            return self._sum_in_memory(one.unit, one.chunk)
        return self.buffers.sum(one.buffer, self._num_elements(one.unit, one.chunk))

    def _sum_in_memory(self, unit: int, chunk: int) -> np.ndarray:
        begin, end = self._model.elements(unit, chunk)
        return self._sums[unit][begin:end]

    def _kernels_for(self, settings: str) -> list[Kernel]:
        known = self._kernels
        if known[0] != settings:
            known = self._kernels = settings, [self._kernels_of(group) for group in json.loads(settings)]
        return known[1]


def square_of(values: np.ndarray) -> float:
    """Return the sum of (n,) float32's squares, in float64: the same bits on any host."""
    total = 0.0
    with np.errstate(all="ignore"):
        for begin in range(0, len(values), _BLOCK):
            wide = values[begin : begin + _BLOCK].astype(np.float64)
            wide *= wide
            total += float(np.add.reduce(wide))
    return total


def _where(folder: PagedFolder, offset: int) -> str:
    return f"{folder.path / SLOTS} at byte {offset}"
