# Pure: no MPI, threads, clock or environment.
"""Models of one memory device under on-demand communication: opened once all regions are known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coarse.odc.device.served import ServedOdc
from coarse.odc.layout import OdcDeclaration, OdcLayout, OdcSizes, Spots
from coarse.odc.records import (
    OdcAdded,
    OdcEnd,
    OdcFailed,
    OdcFetch,
    OdcOpen,
    OdcOpened,
    OdcPublish,
    OdcPush,
    OdcQuery,
    OdcRequest,
    OdcRows,
    OdcShards,
    OdcStatus,
    OdcSummed,
    OdcSums,
)
from coarse.odc.steps import OdcAdd, OdcDone
from coarse.odc.wide_sum import SkippedValue
from coarse.protocol.plan import Placement
from coarse.proxy.feature import DeviceKit, FeatureMachine
from coarse.proxy.instructions import Instructions, Send


@dataclass(eq=False)
class _Opening:
    """Member's statement about a model that is not open yet."""

    texts: list[str] = field(default_factory=list)
    base: int | None = None
    """Offset of its region, once the last fragment has come."""


class DeviceOdc(FeatureMachine):
    """Machine of a device for models under on-demand communication."""

    def __init__(self, device: int, placement: Placement) -> None:
        self._device = device
        self._placement = placement
        self._openings: dict[int, dict[int, _Opening]] = {}
        self._early: dict[int, list[Any]] = {}
        """Records of models that are not open here yet, but elsewhere."""
        self.served: dict[int, ServedOdc] = {}
        self._of_served: dict[type, Callable[[ServedOdc, Any], Instructions]] = {
            OdcPublish: ServedOdc.on_publish,
            OdcFetch: ServedOdc.on_fetch,
            OdcRequest: ServedOdc.on_request,
            OdcPush: ServedOdc.on_push,
            OdcEnd: ServedOdc.on_end,
            OdcSummed: ServedOdc.on_summed,
            OdcQuery: ServedOdc.on_query,
            OdcFailed: ServedOdc.on_failed,
        }
        self.handlers: dict[type, Callable[..., Instructions]] = {
            OdcOpen: self._on_open,
            **dict.fromkeys(self._of_served, self._on_record),
            OdcAdded: self._hand_on,
            OdcStatus: self._hand_on,
        }
        """Handler for each kind of record."""

    def on_bulk(self, record: OdcShards | OdcRows | OdcSums, found: list[SkippedValue]) -> Instructions:
        """Take a record with bytes behind it; `found` has the values of OdcSums that did not fit."""
        served = self.served[record.model]
        if isinstance(record, OdcShards):
            return served.on_shards(record)
        return served.on_rows(record) if isinstance(record, OdcRows) else served.on_sums(record, found)

    def on_found(self, add: OdcAdd, found: list[SkippedValue]) -> None:
        """Note values that did not fit; see ServedOdc."""
        self.served[add.model].on_found(add, found)

    def on_done(self, done: OdcDone) -> Instructions:
        """Note pieces that were added; see ServedOdc."""
        return self.served[done.model].on_done(done)

    def on_leave(self, client: int) -> Instructions:
        """Handle a worker that has shut down."""
        return [step for served in self.served.values() for step in served.on_leave(client)]

    def sizes(self, step: Any) -> OdcSizes | None:  # noqa: ANN401
        """Return the sizes for a step's cost; None for a model that is not open here."""
        served = self.served.get(getattr(step, "model", -1))
        return None if served is None else OdcSizes(served.layout, self._device)

    def layout(self, model: int) -> OdcLayout:
        """Return the layout of a model that is open here."""
        return self.served[model].layout

    def _on_record(self, record: Any) -> Instructions:  # noqa: ANN401
        if isinstance(record, OdcQuery) and record.device != self._device:
            return [Send(self._placement.num_clients + record.device, record)]
        served = self.served.get(record.model)
        if served is None:
            self._early.setdefault(record.model, []).append(record)
            return []
        return self._of_served[type(record)](served, record)

    def _hand_on(self, record: OdcAdded | OdcStatus) -> Instructions:
        """Forward a record of another node's device to a worker of this one."""
        return [Send(record.client, record)]

    def _on_open(self, record: OdcOpen) -> Instructions:
        """Take a fragment of a declaration; the worker's own device forwards it to the others."""
        forwarded: Instructions = []
        num_clients = self._placement.num_clients
        if self._placement.cluster.local_devices[record.client] == self._device:
            others = (device for device in range(self._placement.num_devices) if device != self._device)
            forwarded = [Send(num_clients + device, record) for device in others]
        openings = self._openings.setdefault(record.model, {})
        opening = openings.setdefault(record.client, _Opening())
        opening.texts.append(record.text)
        if not record.is_last:
            return forwarded
        opening.base = record.offset
        declaration = OdcDeclaration.of_text("".join(opening.texts))
        said = {member: one.base for member, one in openings.items() if one.base is not None}
        if not set(declaration.members) <= said.keys():
            return forwarded
        bases = {member: said[member] for member in declaration.members}
        return [*forwarded, *self._open(record.model, declaration, bases)]

    def _open(self, model: int, declaration: OdcDeclaration, bases: dict[int, int]) -> Instructions:
        del self._openings[model]
        layout = OdcLayout(declaration, self._placement)
        if self._device not in layout.devices:
            return []
        served = ServedOdc(self._device, model, layout, Spots(layout, bases), self._placement.num_clients)
        self.served[model] = served
        node = self._placement.cluster.device_nodes[self._device]
        opened = OdcOpened(self._device, model, tuple(bases.values()))
        steps: Instructions = [Send(client, opened) for client in layout.near(node)]
        for record in self._early.pop(model, []):
            steps += self._on_record(record)
        return steps


def machine_of(kit: DeviceKit) -> DeviceOdc:
    """Make a device's part of on-demand communication."""
    return DeviceOdc(kit.device, kit.placement)
