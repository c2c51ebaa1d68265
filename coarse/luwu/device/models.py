# Pure: no MPI, threads, clock or environment.
"""Models of one memory device: opened when all workers join, served, and closed when all leave."""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from coarse.errors import CoarseError, ConfigError
from coarse.luwu.device.places import MemoryLayout, PacketPlan, RootPlaces
from coarse.luwu.device.served import Out, ServedModel
from coarse.luwu.device.switch import ModelSwitch
from coarse.luwu.device.trees import DeviceTrees, places_text, plan_tree_of
from coarse.luwu.many_to_one.frames import Frame
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.tree import Tree
from coarse.luwu.records import (
    TO_CLIENT,
    TO_DEVICE,
    PagedAsk,
    PagedBeat,
    PagedClose,
    PagedClosed,
    PagedCommitted,
    PagedData,
    PagedFailed,
    PagedLook,
    PagedOpen,
    PagedOpened,
    PagedPrepared,
    PagedQuery,
    PagedState,
    PagedStatus,
    PagedTree,
)
from coarse.luwu.steps import (
    CloseStore,
    OpenStore,
    PagedStep,
    StoreOpened,
    StoreWork,
    UseMemory,
    WriteRecord,
)
from coarse.luwu.store.commit import decode_commit
from coarse.luwu.store.declaration import Declaration, staging_slot_bytes, window_slot_bytes
from coarse.luwu.store.layout import BLOCK_BYTES
from coarse.protocol.fragments import fragments, shortened
from coarse.protocol.plan import Placement
from coarse.proxy.feature import DeviceKit, FeatureMachine
from coarse.proxy.instructions import Instructions, Send

Allocate = Callable[[int, Callable[[int, str], Instructions]], Instructions]


@dataclass(eq=False)
class _Model:
    """State of a model from its first worker's record on."""

    joined: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    declaration: Declaration | None = None
    resumed: str = ""
    """Commit that training resumes from, in base 64."""
    tree: Tree | None = None
    opening: OpenStore | None = None
    opened: StoreOpened | None = None
    served: ServedModel | None = None
    region: int = -1
    failed: PagedFailed | None = None
    is_closing: bool = False
    is_closed: bool = False


class DeviceModels(FeatureMachine):
    """Machine of a device for models in the network."""

    def __init__(self, device: int, placement: Placement, allocate: Allocate, free: Callable[[int], None]) -> None:
        """Start without models; `allocate` finds device memory, and `free` gives it back."""
        self._device = device
        self._placement = placement
        self._allocate = allocate
        self._free = free
        self.trees = DeviceTrees(
            device, placement, allocate, free, self._steps, self._on_tree_ready, self.on_failed
        )
        self._models: dict[int, _Model] = {}
        self.slow_work: Callable[[int], str] = lambda model: ""
        """Text for people on a model's work that the driver has waited for too long."""
        self._own: dict[type, Callable[..., Instructions]] = {
            PagedOpen: self._on_open,
            PagedAsk: lambda ask: self._serve(ask.model, ServedModel.on_ask, ask),
            PagedData: lambda data: self._serve(data.model, ServedModel.on_data, data),
            PagedBeat: lambda beat: self._serve(beat.model, ServedModel.on_beat, beat),
            PagedLook: lambda look: self._serve(look.model, ServedModel.on_look, look),
            PagedState: lambda state: self._serve(state.model, ServedModel.on_state, state),
            PagedPrepared: lambda prepared: self._serve(prepared.model, ServedModel.on_prepared, prepared),
            PagedCommitted: lambda record: self._serve(record.model, lambda served, _: served.on_committed(), None),
            PagedQuery: self._on_query,
            PagedClose: self._on_close,
        }
        self.handlers: dict[type, Callable[..., Instructions]] = {
            **dict.fromkeys((*TO_DEVICE, PagedData, PagedBeat, PagedPrepared), self._on_record),
            **dict.fromkeys(TO_CLIENT, self._on_answer),
            PagedTree: self.trees.on_record,
        }
        """Handler for each kind of record."""

    # --- records

    def _on_record(self, record: Any) -> Instructions:  # noqa: ANN401
        """Handle a record of this device, or forward one that is for another device."""
        if record.device == self._device:
            return self._own[type(record)](record)
        if isinstance(record, PagedAsk | PagedData | PagedBeat):
            return self.trees.on_worker(record)
        return [Send(self._placement.num_clients + record.device, record)]

    def _on_answer(self, record: Any) -> Instructions:  # noqa: ANN401
        """Forward a node's answer to a worker of this host; a commit's record may be for this device itself."""
        if record.client < 0:
            return self._own[type(record)](record)
        return [Send(record.client, record)]

    def on_frame(self, device: int, frame: Frame, nbytes: int) -> Instructions:
        """Handle a frame of a tree's device; each packet of data has `nbytes` bytes."""
        if frame.root == self._device:
            return self._serve(frame.model, lambda served, _: served.on_frame(device, frame, nbytes), None)
        return self.trees.on_frame(device, frame, nbytes)

    def on_timer(self, model: int, root: int, device: int, *, is_up: bool) -> Instructions:
        """Handle a silence of a tree's device that is longer than a round trip takes."""
        if root == self._device:
            return self._serve(model, lambda served, _: served.on_timer(device, is_up=is_up), None)
        switch = self.trees.switch(model, root)
        return [] if switch is None else self._steps(switch.on_timer(device, is_up=is_up))

    def senders(self, model: int, root: int) -> dict[tuple[int, bool], Sender]:
        """Return the senders of a tree, by device at the other end and whether the stream is that of pushes."""
        at: ServedModel | ModelSwitch | None = self.trees.switch(model, root)
        if root == self._device:
            known = self._models.get(model)
            at = None if known is None or known.is_closing else known.served
        return {} if at is None else at.senders

    def _to_client(self, number: int, client: int, record: Any) -> Send:  # noqa: ANN401
        """Address a record to a worker that is attached here, or to the device that forwards it to the worker."""
        model = self._models.get(number)
        tree = None if model is None else model.tree
        hub = self._placement.local_proxies[client] if tree is None else tree.hub_of(client)
        return Send(client if hub == self._device else self._placement.num_clients + hub, record)

    def _to_all(self, number: int, make: Callable[[int], Any]) -> Instructions:
        return [self._to_client(number, client, make(client)) for client in range(self._placement.num_clients)]

    def on_dead(self, rank: int, text: str) -> Instructions:
        """Begin to close all models, as a rank is gone: nothing that was not committed will be."""
        for model in self._models.values():
            model.is_closing = True
        return []

    # --- opening

    def _on_open(self, record: PagedOpen) -> Instructions:
        model = self._models.setdefault(record.model, _Model())
        if model.failed is not None:
            return [self._to_client(record.model, record.client, model.failed._replace(client=record.client))]
        if record.client == 0:
            model.texts.append(record.text)
            if record.is_last:
                said = json.loads("".join(model.texts))
                model.declaration, model.resumed = Declaration.from_json(said["declaration"]), said["resumed"]
        if record.is_last:
            model.joined.add(record.client)
        if model.declaration is None or len(model.joined) < self._placement.num_clients:
            return []
        declaration = model.declaration
        try:
            tree = model.tree = plan_tree_of(declaration, self._device, self._placement)
        except ConfigError as error:
            return self.on_failed(record.model, error)
        resumed = decode_commit(base64.b64decode(model.resumed)) if model.resumed else None
        num_clients, num_below = len(tree.child_workers(self._device)), len(tree.child_devices(self._device))
        return [OpenStore(record.model, declaration, num_clients, num_below, resumed)]

    def on_opened(self, opening: OpenStore, opened: StoreOpened) -> Instructions:
        """Begin the tree of a model, whose folders are open and whose memory is planned."""
        model = self._models[opening.model]
        assert model.tree is not None
        model.opening, model.opened = opening, opened
        declaration, ring_bytes = opening.declaration, opened.plan.ring_bytes
        return self.trees.begin(opening.model, model.tree, declaration, ring_bytes)

    def _on_tree_ready(self, number: int, packets: PacketPlan) -> Instructions:
        """Allocate memory for the node's own part, and tell all workers that the model is open."""
        model = self._models[number]
        if model.is_closing:
            return []
        opening, opened, tree = model.opening, model.opened, model.tree
        assert opening is not None
        assert opened is not None
        assert tree is not None
        declaration, plan = opening.declaration, opened.plan
        window_bytes = plan.num_window * window_slot_bytes(declaration.model, self.node_of(number))
        slot_bytes, up_bytes = staging_slot_bytes(declaration), packets.up_bytes(declaration.wire)

        def laid_out(offset: int) -> tuple[RootPlaces, int]:
            layout = MemoryLayout(offset)
            window = layout.take(window_bytes)
            clients = layout.clients(tree.child_workers(self._device), plan, slot_bytes)
            rings = {device: layout.ring(packets.window, up_bytes) for device in tree.child_devices(self._device)}
            return RootPlaces(clients=clients, window=window, rings=rings), layout.end

        def placed(offset: int, refusal: str) -> Instructions:
            if refusal:
                return self._fail(number, "CapacityError", f"{refusal}; {declaration.room_remedy}")
            model.region = offset
            places, _ = laid_out(offset)
            model.served = ServedModel(number, self._device, tree, declaration, opened, packets, places)
            rooms = tuple(place.gradients for place in places.clients.values())
            steps: Instructions = [UseMemory(number, plan, places.window, rooms)]
            for client in range(self._placement.num_clients):
                steps += self._opened(number, opened, places, packets, client)
            return steps

        _, nbytes = laid_out(0)
        return self._allocate(nbytes + BLOCK_BYTES, placed)

    def node_of(self, number: int) -> int:
        """Return the number of this device among a model's optimizer nodes."""
        declaration = self._models[number].declaration
        assert declaration is not None
        return declaration.nodes.index(self._device)

    def _opened(
        self,
        number: int,
        opened: StoreOpened,
        places: RootPlaces,
        packets: PacketPlan,
        client: int,
    ) -> list[Send]:
        """Tell a worker the step that its model resumes from, and its memory's place if it is attached here."""
        resumed: dict[str, Any] | None = None
        if opened.resumed is not None:
            resumed = {"step": opened.resumed.step, "state": base64.b64encode(opened.resumed.workers[client]).decode()}
            if client == 0:
                resumed["commit"] = base64.b64encode(opened.resumed.encode()).decode()
        said: dict[str, Any] = {"resumed": resumed, "told": opened.told}
        if client in places.clients:
            said |= places_text(self._device, places.clients[client], opened.plan, packets)
            said |= {"window": places.window, "num_window": opened.plan.num_window}
        return [
            self._to_client(number, client, PagedOpened(client, self._device, number, is_last, part))
            for is_last, part in fragments(json.dumps(said))
        ]

    # --- serving

    def _serve(self, number: int, do: Callable[[ServedModel, Any], list[Out]], record: object) -> Instructions:
        model = self._models.get(number)
        if model is None or model.served is None or model.failed is not None or model.is_closing:
            return []
        try:
            out = do(model.served, record)
        except CoarseError as error:
            return self._fail(number, type(error).__name__, str(error))
        except Exception as error:  # a defect ends this model alone
            return self._fail(number, "CoarseError", f"optimizer node {self.node_of(number)} ended with {error!r}")
        return [*self._steps(out), *self._close_quiet(number, model)]

    def _steps(self, out: Iterable[Out]) -> Instructions:
        steps: Instructions = []
        for one in out:
            if isinstance(one, PagedStep):
                steps.append(one)
                continue
            endpoint, record = one
            if endpoint < self._placement.num_clients and record.device == self._device:
                steps.append(self._to_client(record.model, endpoint, record))
            else:
                steps.append(Send(endpoint, record))
        return steps

    def on_result(self, done: StoreWork | WriteRecord, value: float) -> Instructions:
        """Pass the result of work that was carried out to its model."""
        return self._serve(done.model, lambda served, _: served.on_result(done, value), None)

    def on_failed(self, number: int, error: CoarseError) -> Instructions:
        """Fail a model whose work could not be carried out; it goes no further."""
        return self._fail(number, type(error).__name__, str(error))

    def _fail(self, number: int, kind: str, text: str) -> Instructions:
        model = self._models[number]
        if model.failed is not None:
            return []
        failed = PagedFailed(ToAll, self._device, number, kind, shortened(text))
        model.failed = failed
        return [*self._to_all(number, lambda client: failed._replace(client=client)), *self._close_quiet(number, model)]

    def _on_query(self, query: PagedQuery) -> Instructions:
        model = self._models.get(query.model)
        lacks = [] if model is None or model.served is None else [model.served.missing()]
        lacks.append(self.slow_work(query.model))
        absent = [one for one in range(self._placement.num_clients) if model is None or one not in model.joined]
        if absent:
            lacks.append(f"ranks {absent} have not called model_in_network")
        elif model is not None and model.served is None:
            lacks.append("its folders are being opened")
        if model is not None and model.left:
            present = [one for one in range(self._placement.num_clients) if one not in model.left]
            lacks.append(f"ranks {present} have not closed the model" if present else "it is being closed")
        text = shortened("; ".join(lack for lack in lacks if lack))
        status = PagedStatus(query.client, self._device, query.model, query.token, text)
        return [self._to_client(query.model, query.client, status)]

    # --- closing

    def _on_close(self, close: PagedClose) -> Instructions:
        model = self._models.get(close.model)
        if model is None:  # another node could not open it
            closed = PagedClosed(close.client, self._device, close.model)
            return [self._to_client(close.model, close.client, closed)]
        model.left.add(close.client)
        steps: Instructions = []
        if close.reason:
            steps += self._fail(close.model, "CoarseError", f"rank {close.client} gave the model up: {close.reason}")
        return [*steps, *self._close_quiet(close.model, model), *self._forget(close.model, model)]

    def _close_quiet(self, number: int, model: _Model) -> Instructions:
        """Close the folders of a model that failed or that all workers have left, once nothing is under way."""
        if model.is_closing:
            return []
        if model.failed is None:
            is_quiet = model.served is None or model.served.is_quiet
            if len(model.left) < self._placement.num_clients or not is_quiet:
                return []
        model.is_closing = True
        return [CloseStore(number)]

    def on_closed(self, number: int) -> Instructions:
        """Tell all workers that a model's folders are closed; only workers still read or write its memory."""
        model = self._models[number]
        model.is_closed = True
        told = self._to_all(number, lambda client: PagedClosed(client, self._device, number))
        return [*told, *self._forget(number, model)]

    def _forget(self, number: int, model: _Model) -> Instructions:
        """Give back the memory of a model that is closed, and that all workers have left."""
        if model.is_closed and len(model.left) == self._placement.num_clients:
            del self._models[number]
            if model.region >= 0:
                self._free(model.region)
            return self.trees.close(number)
        return []


ToAll = -1
"""Placeholder for the worker in a record that is copied for each worker."""


def machine_of(kit: DeviceKit) -> DeviceModels:
    """Make a device's part of models in the network."""
    return DeviceModels(kit.device, kit.placement, kit.allocate, kit.free)
