"""Executor of on-demand communication on a device: adds in place, sends and takes bytes between nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coarse.odc.device.models import DeviceOdc
from coarse.odc.device.odc_bytes import BytesOf, OdcBytes
from coarse.odc.layout import Spot
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.steps import OdcAdd, OdcAddInOrder, OdcDone, OdcMark, OdcMerge, OdcSend, OdcSetAside, OdcStore
from coarse.protocol.codec import decode_bulk, encode_bulk
from coarse.proxy.executor import FeatureExecutor, ServiceKit
from coarse.proxy.instructions import Instructions

CarryOut = Callable[[Instructions], None]
_BULK = 0


class OdcExecutor(FeatureExecutor):
    """Executor of a device's steps on real bytes, one after another."""

    def __init__(
        self, odc: DeviceOdc, bytes_of: BytesOf, send: Callable[[int, np.ndarray], None], carry_out: CarryOut
    ) -> None:
        """Start with `send`, which brings (n,) uint8 to `on_message` of another device.

        `carry_out` carries out the steps that follow.
        """
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

    def on_message(self, device: int, number: int, payload: np.ndarray) -> None:
        """Take a record with bytes behind it, from another device."""
        record, self._bytes.message = decode_bulk(payload)
        assert isinstance(record, OdcShards | OdcRows | OdcSums)
        found = self._bytes.found(record.num_found) if isinstance(record, OdcSums) else []
        self._carry_out(self._odc.on_bulk(record, found))

    @property
    def context(self) -> np.ndarray:
        """Bytes behind the record that is being processed; see FeatureExecutor."""
        return self._bytes.message

    @context.setter
    def context(self, message: np.ndarray) -> None:
        self._bytes.message = message

    def statistics(self) -> dict[str, float]:
        """Return the number of bytes of all rows that were added."""
        return {"odc_added_bytes": self._bytes.added_bytes}

    def _add(self, add: OdcAdd) -> None:
        found = self._bytes.add(add)
        if found:
            self._odc.on_found(add, found)


def executor_of(odc: DeviceOdc, kit: ServiceKit) -> OdcExecutor:
    """Make a device's executor of on-demand communication."""

    def bytes_of(spot: Spot, nbytes: int) -> np.ndarray:
        return kit.memories[spot.device].view(spot.offset, nbytes)

    return OdcExecutor(odc, bytes_of, lambda device, frame: kit.give(device, _BULK, frame), kit.carry_out)
