# Pure: no MPI, threads, clock or environment.
"""What a device's driver does for on-demand communication: adds where it is, sends and takes bytes between nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coarse.odc.device.models import DeviceOdc
from coarse.odc.device.odc_bytes import BytesOf, OdcBytes
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.steps import OdcAdd, OdcAddInOrder, OdcDone, OdcMark, OdcMerge, OdcSend, OdcSetAside, OdcStore
from coarse.protocol.codec import decode_bulk, encode_bulk
from coarse.proxy.instructions import Instruction

CarryOut = Callable[[list[Instruction]], None]


class OdcHands:
    """Carries out a device's steps on real bytes, one after another."""

    def __init__(
        self, odc: DeviceOdc, bytes_of: BytesOf, send: Callable[[int, np.ndarray], None], carry_out: CarryOut
    ) -> None:
        """`send` brings (n,) uint8 to `take` of another device; `carry_out` does what follows."""
        self._odc = odc
        self._bytes = OdcBytes(bytes_of, lambda model: odc.layout(model).declaration)
        self._carry_out = carry_out
        self.carriers: dict[type, Callable[[Any], None]] = {
            OdcAdd: self._add,
            OdcAddInOrder: self._bytes.add_in_order,
            OdcDone: lambda done: carry_out(odc.on_done(done)),
            OdcSetAside: self._bytes.set_aside,
            OdcSend: lambda step: send(step.device, encode_bulk(step.record, self._bytes.payload(step))),
            OdcStore: self._bytes.store,
            OdcMerge: self._bytes.merge,
            OdcMark: self._bytes.mark,
        }

    def take(self, frame: np.ndarray) -> None:
        """A record with bytes behind it has come from another device."""
        record, self._bytes.message = decode_bulk(frame)
        assert isinstance(record, OdcShards | OdcRows | OdcSums)
        found = self._bytes.found(record.num_found) if isinstance(record, OdcSums) else []
        self._carry_out(self._odc.on_bulk(record, found))

    @property
    def added_bytes(self) -> int:
        """Of all rows that were added."""
        return self._bytes.added_bytes

    def _add(self, add: OdcAdd) -> None:
        found = self._bytes.add(add)
        if found:
            self._odc.on_found(add, found)
