# Pure: no MPI, threads, clock or environment.
"""Work of on-demand communication on arrays: in a device's memory, or in a test's."""

from collections.abc import Callable

import numpy as np

from coarse.odc.layout import OdcDeclaration, Spot
from coarse.odc.steps import OdcAdd, OdcAddInOrder, OdcMark, OdcMerge, OdcSend, OdcSetAside, OdcStore
from coarse.odc.sums import sums_in
from coarse.odc.wide_sum import SkippedValue, WideSum
from coarse.protocol.dtypes import DType, Op, widened
from coarse.storage.reduce import accumulate

BytesOf = Callable[[Spot, int], np.ndarray]
_FOUND_BYTES = 16
_NOTHING = np.empty(0, np.uint8)


class OdcBytes:
    """Memory of one device; `message` holds the bytes behind the record that is being processed."""

    def __init__(self, bytes_of: BytesOf, declaration_of: Callable[[int], OdcDeclaration]) -> None:
        """Start with `bytes_of`, which gives (n,) uint8 of this node's memory.

        `declaration_of` gives that of a model.
        """
        self._bytes_of = bytes_of
        self._declaration_of = declaration_of
        self._aside: dict[int, np.ndarray] = {}
        self.message = _NOTHING
        self.added_bytes = 0

    def add(self, add: OdcAdd) -> list[SkippedValue]:
        """Add a row; return the values that did not fit, by element of the sums."""
        declaration = self._declaration_of(add.model)
        shape = declaration.units[add.unit]
        nbytes = declaration.piece_nbytes(add.unit, add.mask)
        row = self.message[add.at : add.at + nbytes] if add.source is None else self._bytes_of(add.source, nbytes)
        values = widened(row.view(DType(shape.dtype).storage), DType(shape.dtype))
        self.added_bytes += nbytes
        found: list[SkippedValue] = []
        for half, is_first in _halves(add.mask, add.started):
            for begin, at, count in shape.runs(half, among=add.mask):
                part = values[begin : begin + count]
                some = self._add_part(declaration, add.unit, add.target, at, part, is_first=is_first)
                found += [SkippedValue(at + one.element, one.kind) for one in some]
        return found

    def _add_part(
        self, declaration: OdcDeclaration, unit: int, target: Spot, begin: int, part: np.ndarray, *, is_first: bool
    ) -> list[SkippedValue]:
        sums = self.sums(declaration, unit, target)
        if isinstance(sums, WideSum):
            return WideSum(sums.words[:, begin : begin + len(part)], sums.top).add(part, is_first=is_first)
        _add_floats(sums[begin : begin + len(part)], part, is_first=is_first)
        return []

    def add_in_order(self, add: OdcAddInOrder) -> None:
        """Add the rows of all workers to one another, and then to the sums."""
        declaration = self._declaration_of(add.model)
        shape = declaration.units[add.unit]
        nbytes = declaration.piece_nbytes(add.unit, add.mask)
        dtype = DType(shape.dtype)
        rows = [
            self._aside.pop(source) if isinstance(source, int) else self._bytes_of(source, nbytes)
            for source in add.sources
        ]
        total = widened(rows[0].view(dtype.storage), dtype).astype(dtype.accumulator, copy=True)
        for row in rows[1:]:
            accumulate(total, widened(row.view(dtype.storage), dtype), Op.SUM)
        sums = self.sums(declaration, add.unit, add.target)
        assert isinstance(sums, np.ndarray)
        for begin, sum_begin, count in shape.runs(add.mask, among=add.mask):
            _add_floats(sums[sum_begin : sum_begin + count], total[begin : begin + count], is_first=add.is_first)

    def sums(self, declaration: OdcDeclaration, unit: int, target: Spot) -> WideSum | np.ndarray:
        """Return an owner's sums of a unit as they lie in memory: a WideSum, or (n,) floating."""
        raw = self._bytes_of(target, declaration.sum_nbytes(unit))
        return sums_in(declaration, unit, raw)

    def set_aside(self, step: OdcSetAside) -> None:
        """Keep a row of the message."""
        self._aside[step.number] = self.message[step.at : step.at + step.nbytes]

    def store(self, step: OdcStore) -> None:
        """Copy bytes of the message into memory."""
        self._bytes_of(step.target, step.nbytes)[...] = self.message[step.at : step.at + step.nbytes]

    def merge(self, step: OdcMerge) -> None:
        """Add the message's sums."""
        declaration = self._declaration_of(step.model)
        sums = self.sums(declaration, step.unit, step.target)
        arriving = sums_in(declaration, step.unit, self.message[: declaration.sum_nbytes(step.unit)])
        for half, is_first in _halves(step.mask, step.started):
            for _, begin, count in declaration.units[step.unit].runs(half, among=step.mask):
                end = begin + count
                if isinstance(sums, WideSum):
                    assert isinstance(arriving, WideSum)
                    WideSum(sums.words[:, begin:end]).merge(arriving.words[:, begin:end], is_first=is_first)
                else:
                    assert isinstance(arriving, np.ndarray)
                    _add_floats(sums[begin:end], arriving[begin:end], is_first=is_first)

    def mark(self, step: OdcMark) -> None:
        """Mark the values that did not fit in the sums."""
        sums = self.sums(self._declaration_of(step.model), step.unit, step.target)
        assert isinstance(sums, WideSum)
        sums.mark(list(step.found))

    def payload(self, send: OdcSend) -> list[np.ndarray]:
        """Return the bytes behind a record: views of memory, and the values that did not fit."""
        parts = [self._bytes_of(spot, nbytes) for spot, nbytes in send.payload]
        if send.found:
            parts.append(np.array(send.found, np.int64).reshape(-1).view(np.uint8))
        return parts

    def found(self, num_found: int) -> list[SkippedValue]:
        """Return the values that did not fit, which are the message's end."""
        if not num_found:
            return []
        raw = self.message[len(self.message) - num_found * _FOUND_BYTES :].copy().view(np.int64).reshape(-1, 2)
        return [SkippedValue(element, kind) for element, kind in raw.tolist()]


def _add_floats(total: np.ndarray, addend: np.ndarray, *, is_first: bool) -> None:
    if is_first:
        total[...] = addend
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            total += addend


def _halves(mask: int, started: int) -> list[tuple[int, bool]]:
    """Return (parameters, whether they begin anew) of those that a piece has."""
    return [half for half in ((mask & ~started, True), (mask & started, False)) if half[0]]
