"""Exponents of integer sums: all workers agree on each before they push (LuWu 3.2.2; SwitchML 3.7).

Each block of a unit has one exponent.
"""

import math
import threading
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from coarse.luwu.client.copying import unit_exponents
from coarse.luwu.client.line import NodeLine, Pushed
from coarse.luwu.client.model import RemoteModel
from coarse.luwu.store.declaration import ALL_REDUCE, Declaration
from coarse.luwu.store.fixed_point import ZERO_EXPONENT
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.luwu.store.packed_chunk import num_blocks
from coarse.protocol.dtypes import DType


def exponents_of_model(declaration: Declaration) -> Declaration:
    """Declare an all-reduce by maximum along a model's trees, with an exponent for each block of a unit."""
    model = declaration.model
    units = []
    for number, unit in enumerate(model.units):
        blocks = sum(num_blocks(end - begin) for begin, end in model.chunks(number))
        units.append(PagedUnit(unit.name, (PagedTensor(f"{number}", (blocks,)),)))
    return Declaration(
        model=PagedModel(units=tuple(units), pulled=DType.INT32, num_states=0, num_devices=model.num_devices),
        optimizer=ALL_REDUCE, sum="max", groups=(), group_of=(), num_workers=declaration.num_workers, storage=None,
        gradients=DType.INT32, nodes=declaration.nodes, network=declaration.network, switches=declaration.switches,
        loss=declaration.loss, owner=declaration.owner, run=declaration.run,
    )  # fmt: skip


class _Asked(NamedTuple):
    line: NodeLine
    unit: int
    pushed: Pushed
    source: np.ndarray | None
    """(n,) of the unit's gradients; None: this worker has none."""


class ExponentAgreement:
    """Thread that agrees on the exponents of pushes, one push after another, and then has them packed."""

    def __init__(self, model: RemoteModel, exponents: RemoteModel) -> None:
        """Start the thread.

        `exponents` is open, and is a model of `exponents_of_model`. All workers put the same pushes in the same order.
        """
        self._model = model
        self._exponents = exponents
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._agree, name="coarse-exponents", daemon=True)
        self._thread.start()

    def put(self, line: NodeLine, unit: int, pushed: Pushed, source: np.ndarray | None) -> None:
        """Queue a push of this worker's next gradients."""
        self._asked.put(_Asked(line, unit, pushed, source))

    def close(self, reason: str) -> None:
        """Close the model of exponents and end the thread; no push will come any more."""
        self._asked.put(None)
        self._exponents.close(reason)
        self._thread.join()

    def _agree(self) -> None:
        try:
            while (asked := self._asked.get()) is not None:
                found = self._own(asked)
                pulled = self._exponents.all_reduce(asked.unit, found)
                self._exponents.wait_for_pull(pulled, math.inf)
                if asked.source is not None:
                    self._model.supply(asked.line, asked.pushed, found)
        except Exception as error:  # whatever it is, who waits for the push shall know
            self._model.fail(error)

    def _own(self, asked: _Asked) -> np.ndarray:
        """Return this worker's exponents, (n,) int32 by block."""
        found = np.full(self._exponents.declaration.model.units[asked.unit].num_elements, ZERO_EXPONENT, np.int32)
        if asked.source is not None:
            own = unit_exponents(self._model.declaration, asked.unit, asked.source)
            found[: len(own)] = own
        return found
