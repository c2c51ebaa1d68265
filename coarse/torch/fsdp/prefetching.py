"""Units gathered ahead: each gathers the one whose forward began next, last time.

[Note: order of gathers] Where workers gather together, all must in one order. A worker's prefetches follow from the
order in which the units' forwards began last time, which is the same for all as long as the workers run the same
program; not from the gathers it happened to make, which differ where one keeps more on its accelerator than another.
"""

from __future__ import annotations

from typing import Protocol

from coarse.torch.fsdp.fsdp2 import Fsdp2Unit


class Prefetched(Protocol):
    """Unit of FSDP2."""

    fsdp: Fsdp2Unit


class EnteredUnits:
    """Units of one tree in the order in which their forwards began; see [Note: order of gathers]."""

    def __init__(self) -> None:
        self._entered: list[Prefetched] = []
        self._chain: list[Prefetched] = []

    def add(self, unit: Prefetched) -> None:
        """Add a unit whose forward begins."""
        if unit not in self._entered:
            self._entered.append(unit)

    def prefetch(self) -> None:
        """Have each unit gather the one that followed it last time, as the tree's next forward begins."""
        entered, self._entered = self._entered, []
        if entered == self._chain:
            return
        for unit in self._chain:
            if unit not in entered:
                unit.fsdp.prefetch(None)
        for unit, following in zip(entered, [*entered[1:], None], strict=True):
            unit.fsdp.prefetch(following.fsdp if following is not None else None)
        self._chain = entered
