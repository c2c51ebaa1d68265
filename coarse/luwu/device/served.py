# Pure: no MPI, threads, clock or environment.
"""Model on its optimizer node: operations, streams and commits, between records and the machine."""

import base64
from functools import cached_property

from coarse.luwu.device.arrivals import Arrivals
from coarse.luwu.device.commits import Commits, versions_from_json, versions_to_json
from coarse.luwu.device.places import ChildPackets, PacketPlan, PushedValues, RootPlaces
from coarse.luwu.device.reducing import ReducingNode
from coarse.luwu.many_to_one.frames import Frame, whole_beat, whole_data, whole_probe
from coarse.luwu.many_to_one.packets import Beat, Complete, Data, Free, Message, Probe, Take, Transmit
from coarse.luwu.many_to_one.packets import Instruction as HopInstruction
from coarse.luwu.many_to_one.root import Root
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.tree import Tree
from coarse.luwu.records import (
    PagedAsk,
    PagedBeat,
    PagedCommitted,
    PagedData,
    PagedLook,
    PagedLooked,
    PagedNorm,
    PagedPrepared,
    PagedRecord,
    PagedState,
)
from coarse.luwu.steps import (
    PagedStep,
    PlaceOfValues,
    SendFrame,
    SendLooked,
    StoreOpened,
    StoreWork,
    WriteRecord,
)
from coarse.luwu.store.commit import Commit
from coarse.luwu.store.declaration import Declaration, window_slot_bytes
from coarse.luwu.store.instructions import (
    AddSum,
    Consumed,
    DropSums,
    Instruction,
    Look,
    Offer,
    Prepared,
    SquareSum,
    TellNorm,
)
from coarse.luwu.store.operations import OperationLog, Pull, Push, from_wire
from coarse.luwu.store.optimizer import PagedOptimizer
from coarse.luwu.store.stream import ChunkStream
from coarse.protocol.dtypes import DType
from coarse.protocol.fragments import fragments


class ToWorkers:
    """Addressee of a record for all workers of the job; a record for one worker has that worker's number."""

    ALL = -1


Out = tuple[int, PagedRecord] | PagedStep
"""Record for an endpoint, or work for the driver."""


class ServedModel:
    """Optimizer node's part in a model that is open."""

    def __init__(
        self,
        number: int,
        device: int,
        tree: Tree,
        declaration: Declaration,
        opened: StoreOpened,
        packets: PacketPlan,
        places: RootPlaces,
    ) -> None:
        """Start serving a model.

        Args:
            number: number of the model.
            device: this device.
            tree: tree whose root this device is.
            declaration: declaration of the model.
            opened: its open folders, with the memory plan.
            packets: division of streams into packets.
            places: places of values in device memory.
        """
        model = declaration.model
        num_clients = tree.placement.num_clients
        self.number = number
        self.declaration = declaration
        self._device = device
        nodes = self._nodes = declaration.nodes
        self._node = nodes.index(device)
        self.tree = tree
        self._children = tree.children(device)
        self._child_of = {endpoint: child for child, endpoint in enumerate(self._children)}
        self._num_clients = num_clients
        self._places = places.clients
        self._slot_bytes = window_slot_bytes(model, self._node)
        self._packets = packets
        self._window, self._num_window = places.window, opened.plan.num_window
        self.optimizer: PagedOptimizer | ReducingNode
        if declaration.is_all_reduce:
            self.optimizer = ReducingNode(model, opened.plan.num_window)
        else:
            self.optimizer = PagedOptimizer(
                model, self._node, declaration.rules, num_buffers=opened.plan.num_buffers,
                num_window=opened.plan.num_window, in_memory=opened.plan.in_memory, resumed=opened.resumed,
            )  # fmt: skip
        self._log = OperationLog(num_clients)
        self._down = ChunkStream(model, packets.down_elements)
        self._up = ChunkStream(declaration.pushed, packets.up_elements)
        pull_window = opened.plan.num_window * self._down.most_packets
        credits = [pull_window if endpoint < num_clients else packets.window for endpoint in self._children]
        near = [child for child, endpoint in enumerate(self._children) if endpoint < num_clients]
        self._root = Root(len(self._children), packets.window, pull_window, credits, near)
        self._pushed = PushedValues(self._up, places.clients, opened.plan.num_staging, declaration)
        self._below = {below: ChildPackets(ring, declaration.wire) for below, ring in places.rings.items()}
        self._arrivals = Arrivals(num_clients)
        self._looks: dict[int, tuple[int, int]] = {}
        """Look -> (worker, its token)."""
        self._num_looks = 0
        sequence = 0 if opened.resumed is None else opened.resumed.sequence + 1
        run = declaration.run if opened.resumed is None else opened.resumed.run
        is_first = self._node == 0
        self._commits = (
            Commits(run, len(model.units), len(nodes), num_clients, sequence) if is_first else None
        )
        self._texts: dict[tuple[str, int], list[str]] = {}

    # --- workers' records

    def on_ask(self, ask: PagedAsk) -> list[Out]:
        """Take a worker's next operation.

        Raises:
            MismatchError: another worker asked for another one.
        """
        operation = from_wire(ask.operation)
        asked, is_first = self._log.on_asked(ask.client, operation, ask.present)
        if isinstance(operation, Push):
            if ask.client in self._places:
                spans = self._pushed.on_push(ask.client, operation, ask.present, ask.offset)
            else:
                spans = self._pushed.skip(operation) if is_first else ()
            self._arrivals.on_push(ask.client, spans)
        elif isinstance(operation, Pull) and is_first:
            self._down.append(operation.unit)
        return [*self._carry(self.optimizer.on_asked(asked, is_first=is_first)), *self._on_full()]

    def on_data(self, record: PagedData) -> list[Out]:
        """Take packets that a worker pushes."""
        data = Data(record.begin, record.end, record.stamp, record.asks)
        return self._hop(self._root.on_push_data(self._child_of[record.client], data), is_up=True)

    def on_beat(self, record: PagedBeat) -> list[Out]:
        """Take a worker's heartbeat about its pulls."""
        beat = Beat(record.ack, record.credit, record.beyond, record.echo)
        return self._hop(self._root.on_pull_beat(self._child_of[record.client], beat), is_up=False)

    def on_frame(self, device: int, frame: Frame, nbytes: int) -> list[Out]:
        """Take a frame of a device below; each packet of data has `nbytes` bytes."""
        child, message = self._child_of[device + self._num_clients], frame.message
        if isinstance(message, Beat):
            beat = whole_beat(message, self._root.pulling(child))
            return self._hop(self._root.on_pull_beat(child, beat), is_up=False)
        receiver = self._root.pushing(child)
        if isinstance(message, Probe):
            return self._hop(self._root.on_push_probe(child, whole_probe(message, receiver)), is_up=True)
        data = whole_data(message, receiver)
        wanted = self._root.on_push_data(child, data)
        out: list[Out] = []
        for one in wanted:
            if isinstance(one, Take):
                out += self._below[device].take(one.begin, one.end, data, nbytes, is_empty=frame.is_empty)
        return out + self._hop(wanted, is_up=True)

    def on_timer(self, device: int, is_up: bool) -> list[Out]:
        """Handle a silence of a device below that is longer than a round trip takes."""
        assert not is_up
        return self._hop(self._root.on_pull_timer(self._child_of[device + self._num_clients]), is_up=False)

    @cached_property
    def senders(self) -> dict[tuple[int, bool], Sender]:
        """Senders by device at the other end, and whether the stream is that of pushes."""
        return {
            (endpoint - self._num_clients, False): self._root.pulling(child)
            for endpoint, child in self._child_of.items()
            if endpoint >= self._num_clients
        }

    def on_look(self, look: PagedLook) -> list[Out]:
        """Begin to read an array of a chunk that a worker wants to look at."""
        number = self._num_looks
        self._num_looks += 1
        self._looks[number] = look.client, look.token
        return self._carry(self._paged.on_look(number, look.unit, look.chunk, look.array, look.num_before))

    def on_state(self, state: PagedState) -> list[Out]:
        """Take a fragment of a worker's own state."""
        text = self._joined(f"state {state.number}", state.client, state.is_last, state.text)
        if text is None:
            return []
        assert self._commits is not None
        return self._record(self._commits.on_state(state.client, state.number, base64.b64decode(text)))

    def on_prepared(self, prepared: PagedPrepared) -> list[Out]:
        """Note that another optimizer node is prepared."""
        text = self._joined("prepared", prepared.node, prepared.is_last, prepared.text)
        if text is None:
            return []
        assert self._commits is not None
        return self._record(self._commits.on_prepared(prepared.node, prepared.step, versions_from_json(text)))

    def on_committed(self) -> list[Out]:
        """Go on after the first optimizer node has written the record."""
        return self._carry(self._paged.on_committed())

    def missing(self) -> str:
        """Return text for people on what this node waits for."""
        lacking = self._log.missing()
        waits = [] if lacking is None else [f"ranks {list(lacking[1])} have not called what {lacking[0]}"]
        if self._commits is not None and (commit := self._commits.missing()):
            waits.append(commit)
        return "; ".join(waits)

    @property
    def _paged(self) -> PagedOptimizer:
        assert isinstance(self.optimizer, PagedOptimizer), "an all-reduce keeps nothing"
        return self.optimizer

    @property
    def is_quiet(self) -> bool:
        """True if nothing is under way."""
        return self.optimizer.is_quiet

    # --- what the driver has done

    def on_result(self, done: StoreWork | WriteRecord, value: float) -> list[Out]:
        """Take the result of an instruction that was carried out."""
        if isinstance(done, WriteRecord):
            step = done.commit.step
            told: list[Out] = [
                (worker, PagedCommitted(worker, self._device, self.number, step)) for worker in range(self._num_clients)
            ]
            told += [
                (self._num_clients + node, PagedCommitted(ToWorkers.ALL, node, self.number, step))
                for node in self._nodes[1:]
            ]
            return [*told, *self.on_committed()]
        one = done.instruction
        if isinstance(one, AddSum):
            return self._carry(self.optimizer.on_added(one, value))
        if isinstance(one, SquareSum):
            return self._carry(self._paged.on_squared(one, value))
        if isinstance(one, Look):
            client, token = self._looks.pop(one.token)
            looked = PagedLooked(client, self._device, self.number, token, one.steps)
            if client in self._places:
                return [(client, looked)]
            return [SendLooked(self.number, one.token, self.tree.hub_of(client), looked)]
        return self._carry(self._paged.on_done(one))

    # --- within

    def _carry(self, instructions: list[Instruction]) -> list[Out]:
        out: list[Out] = []
        for one in instructions:
            match one:
                case Offer(number, _, _):
                    span = self._down.at(number)
                    out += self._hop(self._root.offer(span.first, span.end), is_up=False)
                case Consumed(push, chunk):
                    out += self._consume(push, chunk)
                case TellNorm(square):
                    out += [
                        (worker, PagedNorm(worker, self._device, self.number, square))
                        for worker in range(self._num_clients)
                    ]
                case Prepared(step):
                    out += self._prepare(step)
                case DropSums():
                    pass  # what comes next is the first of its sum
                case AddSum():
                    out.append(StoreWork(self.number, one, self._values(one)))
                case Look():
                    client = self._looks[one.token][0]
                    values: tuple[PlaceOfValues, ...] = ()
                    if client in self._places:
                        values = (PlaceOfValues(self._places[client].look, int(DType.FLOAT32), is_zeroed=False),)
                    out.append(StoreWork(self.number, one, values))
                case _:
                    out.append(StoreWork(self.number, one))
        return out

    def _values(self, add: AddSum) -> tuple[PlaceOfValues, ...]:
        """Return the places of the children's values of a chunk, in their order."""
        span = self._arrivals.span(add.push, add.chunk)
        own = self._pushed.of(add.push)
        places = []
        for endpoint in self._children:
            if endpoint < self._num_clients:
                if endpoint in own:
                    places.append(self._pushed.place(endpoint, span, 0))
            else:
                below = self._below[endpoint - self._num_clients]
                if span.first not in below.empty:
                    places.append(below.place(span.first))
        return tuple(places)

    def _consume(self, push: int, chunk: int) -> list[Out]:
        end = -1
        for span in self._arrivals.on_added(push, chunk):
            end = span.end
            if span.chunk + 1 == self.declaration.model.num_chunks(span.unit):
                self._pushed.forget(span.message)
                self._arrivals.forget(span.message)
        if end < 0:
            return []
        for below in self._below.values():
            below.forget(end)
        return self._hop(self._root.on_added(end), is_up=True)

    def _hop(self, wanted: list[HopInstruction], *, is_up: bool) -> list[Out]:
        """Carry out the instructions of the root's hops, for the stream of pushes or of pulls."""
        out: list[Out] = []
        for one in wanted:
            match one:
                case Transmit(child, message):
                    out += self._transmit(self._children[child], message, is_up=is_up)
                case Complete(end):
                    self._arrivals.on_complete(end)
                    out += self._on_full()
                case Free(end) if not is_up:
                    freed = [span.order for span in self._down.below(end)]
                    if freed:
                        out += self._carry(self.optimizer.on_freed(freed[-1] + 1))
        return out

    def _transmit(self, endpoint: int, message: Message, *, is_up: bool) -> list[Out]:
        """Send a message to a worker that is attached here, or to a device."""
        if endpoint >= self._num_clients:
            return self._send(endpoint - self._num_clients, message, is_up=is_up)
        if isinstance(message, Data):
            return [(endpoint, PagedData(endpoint, self._device, self.number, is_up, *message))]
        if isinstance(message, Beat):
            return [(endpoint, PagedBeat(endpoint, self._device, self.number, is_up, *message))]
        return []  # what lies in mapped memory is not lost

    def _send(self, device: int, message: Message, *, is_up: bool) -> list[Out]:
        if not isinstance(message, Data):
            return [SendFrame(device, Frame(self.number, self._device, is_up, message))]
        out: list[Out] = []
        model, itemsize = self.declaration.model, self.declaration.model.pulled.itemsize
        each = (self._packets.down_elements or 0) * itemsize
        for span in self._down.overlapping(message.begin, message.end):
            begin, end = max(message.begin, span.first), min(message.end, span.end)
            first, past = model.elements(span.unit, span.chunk)
            skipped = (begin - span.first) * each
            nbytes = min((end - begin) * each, (past - first) * itemsize - skipped)
            at = self._window + span.order % self._num_window * self._slot_bytes + skipped
            frame = Frame(self.number, self._device, False, message.part(begin, end))
            out.append(SendFrame(device, frame, ((at, nbytes),), each))
        return out

    def _on_full(self) -> list[Out]:
        out: list[Out] = []
        for span in self._arrivals.take_full():
            self._up.forget(span.end)
            out += self._carry(self.optimizer.on_full(span.message, span.chunk))
        return out

    def _prepare(self, step: int) -> list[Out]:
        versions = self._paged.versions()
        if self._commits is not None:
            return self._record(self._commits.on_prepared(self._node, step, versions))
        first = self._nodes[0]
        return [
            (self._num_clients + first, PagedPrepared(self._node, first, self.number, step, is_last, text))
            for is_last, text in fragments(versions_to_json(versions))
        ]

    def _record(self, commit: Commit | None) -> list[Out]:
        return [] if commit is None else [WriteRecord(self.number, commit)]

    def _joined(self, what: str, source: int, is_last: bool, text: str) -> str | None:
        """Return the text of all fragments with the last one; None before."""
        texts = self._texts.setdefault((what, source), [])
        texts.append(text)
        return "".join(self._texts.pop((what, source))) if is_last else None
