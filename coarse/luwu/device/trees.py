# Pure: no MPI, threads, clock or environment.
"""Trees of a device's models: the setup of their devices' links before a model begins, and the end.

[Note: a tree's beginning] The optimizer node's device, the root, goes through it with all the others at once: "join"
(each makes ends for its links), "connect" (each has them lead to its peers'), "begin" (packets have a size; each has
memory and tells its workers where). Any device may answer "failed" in place of "joined", "connected" or "ready".
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coarse import errors
from coarse.errors import CapacityError, CoarseError
from coarse.luwu.device.places import ClientPlaces, MemoryLayout, PacketPlan
from coarse.luwu.device.served import Out
from coarse.luwu.device.switch import ModelSwitch, SwitchPlaces
from coarse.luwu.many_to_one.frames import HEADER_BYTES, MOST_PACKETS, Frame
from coarse.luwu.many_to_one.tree import Tree, plan_tree
from coarse.luwu.records import PagedAsk, PagedBeat, PagedData, PagedOpened, PagedTree
from coarse.luwu.steps import CloseLinks, ConnectLinks, OpenLinks, ZeroValues
from coarse.luwu.store.declaration import PUSH_WINDOW, Declaration, MemoryPlan, plan_switch, staging_slot_bytes
from coarse.luwu.store.layout import BLOCK_BYTES
from coarse.luwu.store.operations import GRADIENTS
from coarse.luwu.store.stream import ChunkStream
from coarse.protocol.fragments import fragments
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instructions, Send

Allocate = Callable[[int, Callable[[int, str], Instructions]], Instructions]
_LEAST_WINDOW = 4
_ALIGN = 16
"""Number of elements that packets are multiples of."""


@dataclass(eq=False)
class _Join:
    """State of a tree on one of its devices."""

    tree: Tree
    declaration: Declaration
    switch: ModelSwitch | None = None
    region: int = -1
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Last answer of each device, at the root."""
    phase: str = ""
    ring_bytes: int = 0
    """Bytes for the window of each device below the root, at the root."""


class DeviceTrees:
    """All trees that a device takes part in, by model and root."""

    def __init__(
        self,
        device: int,
        placement: Placement,
        allocate: Allocate,
        free: Callable[[int], None],
        to_steps: Callable[[list[Out]], Instructions],
        on_ready: Callable[[int, PacketPlan], Instructions],
        on_failed: Callable[[int, CoarseError], Instructions],
    ) -> None:
        """Start without trees.

        `on_ready` and `on_failed` are called for trees whose root this device is. `to_steps` makes steps of a machine's
        output.
        """
        self._device = device
        self._placement = placement
        self._allocate = allocate
        self._free = free
        self._to_steps = to_steps
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._joins: dict[tuple[int, int], _Join] = {}
        self._texts: dict[tuple[int, int, int, str], list[str]] = {}
        self._as_root: dict[str, Callable[[int, _Join], Instructions]] = {
            "joined": self._all_joined, "connected": self._all_connected, "ready": self._all_ready,
        }  # fmt: skip

    # --- the root

    def begin(self, model: int, tree: Tree, declaration: Declaration, ring_bytes: int) -> Instructions:
        """Begin a tree whose root this device is."""
        join = self._joins[model, self._device] = _Join(tree, declaration, ring_bytes=ring_bytes)
        if len(tree.devices) == 1:
            return self._on_ready(model, PacketPlan(window=PUSH_WINDOW))
        declared = {"declaration": declaration.to_json()}
        asked = self._ask_all(model, join, "join", dict.fromkeys(tree.devices, declared))
        return [*asked, self._open_links(model, join)]

    def close(self, model: int) -> Instructions:
        """End a tree whose root this device is, and which its workers have left."""
        join = self._joins.pop((model, self._device), None)
        if join is None or len(join.tree.devices) == 1:
            return []
        steps: Instructions = [CloseLinks(model, self._device)]
        for device in join.tree.devices[1:]:
            steps += self._tell(device, model, self._device, "leave", {})
        return steps

    def _ask_all(self, model: int, join: _Join, what: str, texts: dict[int, dict[str, Any]]) -> Instructions:
        join.phase = {"join": "joined", "connect": "connected", "begin": "ready"}[what]
        join.answers.clear()
        steps: Instructions = []
        for device in join.tree.devices[1:]:
            steps += self._tell(device, model, self._device, what, texts[device])
        return steps

    def _answered(self, model: int, root: int, what: str, answer: dict[str, Any]) -> Instructions:
        """Answer the root that this device has done its part."""
        if root != self._device:
            return self._tell(root, model, root, what, answer)
        return self._on_answer(model, self._device, what, answer)

    def _on_answer(self, model: int, device: int, what: str, answer: dict[str, Any]) -> Instructions:
        join = self._joins.get((model, self._device))
        if join is None:
            return []
        if what == "failed":
            kind = getattr(errors, answer["error"], CoarseError)
            return self._on_failed(model, kind(answer["text"]))
        join.answers[device] = answer
        if what != join.phase or len(join.answers) < len(join.tree.devices):
            return []
        return self._as_root[what](model, join)

    def _all_joined(self, model: int, join: _Join) -> Instructions:
        """Tell each device what its peers have said of their ends."""
        said = dict(join.answers)
        texts = {
            device: {"peers": {str(peer): said[peer][str(device)] for peer in self._peers(join.tree, device)}}
            for device in join.tree.devices
        }
        steps = self._ask_all(model, join, "connect", texts)
        return [*steps, self._connect(model, self._device, texts[self._device])]

    def _all_connected(self, model: int, join: _Join) -> Instructions:
        """Plan packets that fill the smallest datagram, and a window that each receiver has room for."""
        payload_bytes = min(answer["payload_bytes"] for answer in join.answers.values()) - HEADER_BYTES
        room_bytes = min(answer["room_bytes"] for answer in join.answers.values())
        wire, pushed = join.declaration.wire, join.declaration.pushed
        up = payload_bytes // wire.itemsize // _ALIGN * _ALIGN
        down = payload_bytes // join.declaration.model.pulled.itemsize // _ALIGN * _ALIGN
        whole = ChunkStream(pushed, up).most_packets  # a chunk is added when all of it is there
        window = max(whole, min(join.ring_bytes // (up * wire.itemsize), room_bytes // (payload_bytes + HEADER_BYTES)))
        window = min(max(window, _LEAST_WINDOW), MOST_PACKETS)
        if whole > window:
            error = CapacityError(
                f"a chunk of {pushed.chunk_elements} elements is {whole} packets of {payload_bytes} "
                f"bytes, above {MOST_PACKETS}; lower chunk_elements"
            )
            return self._on_failed(model, error)
        packets = {"window": window, "up_elements": up, "down_elements": down}
        steps = self._ask_all(model, join, "begin", dict.fromkeys(join.tree.devices, packets))
        return [*steps, *self._answered(model, self._device, "ready", packets)]

    def _all_ready(self, model: int, join: _Join) -> Instructions:
        return self._on_ready(model, PacketPlan(**join.answers[self._device]))

    # --- all devices

    def on_record(self, record: PagedTree) -> Instructions:
        """Take a record of another device of a tree."""
        if record.device != self._device:
            return [Send(self._placement.num_clients + record.device, record)]
        texts = self._texts.setdefault((record.source, record.model, record.root, record.what), [])
        texts.append(record.text)
        if not record.is_last:
            return []
        said = json.loads("".join(self._texts.pop((record.source, record.model, record.root, record.what))))
        model, root = record.model, record.root
        if root == self._device:
            return self._on_answer(model, record.source, record.what, said)
        match record.what:
            case "join":
                declaration = Declaration.from_json(said["declaration"])
                tree = plan_tree_of(declaration, root, self._placement)
                join = self._joins[model, root] = _Join(tree, declaration)
                return [self._open_links(model, join)]
            case "connect":
                return [self._connect(model, root, said)]
            case "begin":
                return self._begin(model, root, PacketPlan(**said))
        return self._leave(model, root)

    def on_links_open(self, step: OpenLinks, described: dict[int, dict[str, Any]]) -> Instructions:
        """Answer with the descriptions of the ends that were made, which their peers have to know."""
        answer = {str(peer): text for peer, text in described.items()}
        return self._answered(step.model, step.root, "joined", answer)

    def on_connected(self, step: ConnectLinks, payload_bytes: int, room_bytes: int) -> Instructions:
        """Answer that the links are connected, with a datagram's bytes and the kernel's room for datagrams."""
        answer = {"payload_bytes": payload_bytes, "room_bytes": room_bytes}
        return self._answered(step.model, step.root, "connected", answer)

    def on_links_failed(self, step: OpenLinks | ConnectLinks, error: CoarseError) -> Instructions:
        """Answer that the ends cannot be made."""
        return self._failed(step.model, step.root, error)

    def _failed(self, model: int, root: int, error: CoarseError) -> Instructions:
        text = f"memory device {self._device}: {error}"
        return self._answered(model, root, "failed", {"error": type(error).__name__, "text": text})

    def _open_links(self, model: int, join: _Join) -> OpenLinks:
        declaration = join.declaration
        peers = self._peers(join.tree, self._device)
        return OpenLinks(model, join.tree.root, peers, declaration.network, declaration.loss)

    def _connect(self, model: int, root: int, said: dict[str, Any]) -> ConnectLinks:
        return ConnectLinks(model, root, {int(peer): text for peer, text in said["peers"].items()})

    def _peers(self, tree: Tree, device: int) -> tuple[int, ...]:
        parent = tree.parents.get(device)
        return (*tree.child_devices(device), *(() if parent is None else (parent,)))

    # --- switches

    def _begin(self, model: int, root: int, packets: PacketPlan) -> Instructions:
        """Allocate memory for a switch's rings, and tell its workers the places of theirs."""
        join = self._joins[model, root]
        tree, declaration = join.tree, join.declaration
        workers, below = tree.child_workers(self._device), tree.child_devices(self._device)
        plan = plan_switch(declaration, len(workers))
        assert packets.down_elements is not None
        down_bytes = packets.down_elements * declaration.model.pulled.itemsize
        wire = declaration.wire
        adds = len(workers) != 1 or bool(below) or declaration.type_of(GRADIENTS) is not wire
        up_bytes = packets.up_bytes(wire)

        def laid_out(offset: int) -> tuple[SwitchPlaces, int]:
            layout = MemoryLayout(offset)
            places = SwitchPlaces(
                clients=layout.clients(workers, plan, staging_slot_bytes(declaration)),
                rings={device: layout.ring(packets.window, up_bytes) for device in below},
                sums=layout.ring(packets.window, up_bytes) if adds else None,
                copies=layout.ring(packets.window, down_bytes),
            )
            return places, layout.end

        def placed(offset: int, refusal: str) -> Instructions:
            if refusal:
                return self._failed(model, root, CapacityError(f"{refusal}; {declaration.room_remedy}"))
            join.region = offset
            places, _ = laid_out(offset)
            join.switch = ModelSwitch(model, self._device, tree, declaration, packets, places, plan.num_staging)
            clients = places.clients.values()
            steps: Instructions = [ZeroValues(place.gradients, plan.gradient_bytes) for place in clients]
            for worker, place in places.clients.items():
                text = json.dumps({
                    **places_text(self._device, place, plan, packets),
                    "ring": list(places.copies),
                })  # fmt: skip
                steps += [
                    Send(worker, PagedOpened(worker, root, model, is_last, part)) for is_last, part in fragments(text)
                ]
            return [*steps, *self._answered(model, root, "ready", {})]

        _, nbytes = laid_out(0)
        return self._allocate(nbytes + BLOCK_BYTES, placed)

    def _leave(self, model: int, root: int) -> Instructions:
        join = self._joins.pop((model, root), None)
        if join is None:
            return []
        if join.region >= 0:
            self._free(join.region)
        return [CloseLinks(model, root)]

    def switch(self, model: int, root: int) -> ModelSwitch | None:
        """Return this device's switch of a tree; None before it has begun."""
        join = self._joins.get((model, root))
        return None if join is None else join.switch

    def on_worker(self, record: PagedAsk | PagedData | PagedBeat) -> Instructions:
        """Handle a record of a worker of this host on its way to another device's optimizer node."""
        switch = self.switch(record.model, record.device)
        if switch is None:
            return []
        if isinstance(record, PagedAsk):
            switch.on_ask(record)
            return [Send(self._placement.num_clients + record.device, record)]
        return self._to_steps(switch.on_data(record) if isinstance(record, PagedData) else switch.on_beat(record))

    def on_frame(self, device: int, frame: Frame, nbytes: int) -> Instructions:
        """Take a frame of a device, for a tree whose root is another device."""
        switch = self.switch(frame.model, frame.root)
        return [] if switch is None else self._to_steps(switch.on_frame(device, frame, nbytes))

    def _tell(self, device: int, model: int, root: int, what: str, said: dict[str, Any]) -> Instructions:
        return [
            Send(
                self._placement.num_clients + device,
                PagedTree(self._device, device, model, root, what, is_last, part),
            )
            for is_last, part in fragments(json.dumps(said))
        ]


def plan_tree_of(declaration: Declaration, root: int, placement: Placement) -> Tree:
    """Return the tree of a model's optimizer node whose device is `root`; see plan_tree."""
    return plan_tree(root, declaration.nodes.index(root), placement, dict(declaration.switches))


def places_text(hub: int, place: ClientPlaces, plan: MemoryPlan, packets: PacketPlan) -> dict[str, Any]:
    """Return a worker's memory on the device that it is attached to, and the packets, as JSON values."""
    return {
        "hub": hub,
        "gradients": place.gradients,
        "gradient_bytes": plan.gradient_bytes,
        "staging": place.staging,
        "num_staging": plan.num_staging,
        "look": place.look,
        "push_window": packets.window,
        "up_elements": packets.up_elements,
        "down_elements": packets.down_elements,
    }
