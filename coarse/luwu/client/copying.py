"""Copies of a model's packets between a worker's memory and a device's, in both directions."""

from collections.abc import Callable

import numpy as np

from coarse.luwu.client.line import Copy, NodeLine
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.fixed_point import format_of
from coarse.luwu.store.operations import GRADIENTS
from coarse.luwu.store.packed_chunk import chunk_exponents, num_blocks, pack, pack_bits
from coarse.protocol.dtypes import widened


def copy_packets(
    line: NodeLine, copy: Copy, view: Callable[[int, int], np.ndarray], declaration: Declaration
) -> None:
    """Copy pulled packets to their target, or a pushed chunk to its staging slot.

    `view` gives (nbytes,) uint8 of the device's memory from an offset on.
    """
    begin, end = line.elements(copy)
    if copy.pulled is not None:
        if copy.pulled.target is not None:
            itemsize = declaration.model.pulled.itemsize
            values = view(copy.offset, (end - begin) * itemsize)
            copy.pulled.target[begin * itemsize : end * itemsize] = values
        return
    pushed = copy.pushed
    assert pushed is not None
    assert pushed.source is not None
    source = pushed.source[begin:end]
    if not declaration.is_packed:
        view(copy.offset, source.nbytes)[:] = source.view(np.uint8)
        return
    first, past = declaration.pushed.elements(copy.span.unit, copy.span.chunk)
    wire = declaration.wire
    slot = view(copy.offset, (past - first) * wire.itemsize).view(wire.storage)
    if pushed.exponents is None:
        pack_bits(source, slot)
        return
    block = num_blocks(declaration.model.chunk_elements) * copy.span.chunk
    exponents = pushed.exponents[block : block + num_blocks(end - begin)]
    form = format_of(declaration.sum, declaration.num_workers)
    pack(form, widened(source, declaration.type_in_worker(GRADIENTS)), exponents, slot)


def unit_exponents(
    declaration: Declaration,
    unit: int,
    gradients: np.ndarray,  # (n,) of the unit, as the worker has them
) -> np.ndarray:
    """Return this worker's own exponents of a unit's blocks, chunk by chunk: (m,) int64."""
    model, dtype = declaration.model, declaration.type_in_worker(GRADIENTS)
    return np.concatenate([
        chunk_exponents(widened(gradients[begin:end], dtype)) for begin, end in model.chunks(unit)
    ])  # fmt: skip
