# Pure: no MPI, threads, clock or environment.
"""One model on its optimizer node: operations, both streams and commits, between workers' records and the machine."""

import base64
from collections import deque
from dataclasses import dataclass

from coarse.protocol.dtypes import DType
from coarse.protocol.paged_records import (
    PagedAsk,
    PagedBeat,
    PagedCommitted,
    PagedData,
    PagedLook,
    PagedLooked,
    PagedNorm,
    PagedPrepared,
    PagedState,
)
from coarse.protocol.records import Record
from coarse.protocol.snapshot_records import fragments
from coarse.proxy.paged.commits import Commits, versions_from_json, versions_to_json
from coarse.proxy.paged_steps import PagedStep, PlaceOfValues, StoreOpened, StoreWork, WriteRecord
from coarse.storage.paged.commit import Commit
from coarse.storage.paged.declaration import PUSH_WINDOW, Declaration, staging_slot_bytes
from coarse.storage.paged.instructions import (
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
from coarse.storage.paged.operations import GRADIENTS, OperationLog, Pull, Push, from_wire
from coarse.storage.paged.optimizer import PagedOptimizer
from coarse.storage.paged.stream import ChunkStream, Span
from coarse.transport.many_to_one.packets import Beat, Complete, Data, Free, Transmit
from coarse.transport.many_to_one.packets import Instruction as HopInstruction
from coarse.transport.many_to_one.root import Root


@dataclass(frozen=True)
class ClientPlaces:
    """Where a worker's values lie in its node's device memory."""

    gradients: int
    """Where gradients may be born."""
    staging: int
    """Slots through which values are copied."""
    look: int
    """The slot of what the worker looks at."""


class ToWorkers:
    """A record for all workers of the job; what goes to one has its number."""

    ALL = -1


Out = tuple[int, Record] | PagedStep
"""A record for an endpoint, or work for the driver."""


class ServedModel:
    """What an optimizer node does for a model that is open."""

    def __init__(
        self,
        number: int,
        device: int,
        nodes: tuple[int, ...],
        clients: tuple[int, ...],
        declaration: Declaration,
        opened: StoreOpened,
        places: dict[int, ClientPlaces],
        num_clients: int,
    ) -> None:
        """`nodes`: by optimizer node its device; `clients`: the workers of this host, with their places."""
        model = declaration.model
        self.number = number
        self.declaration = declaration
        self._device = device
        self._nodes = nodes
        self._node = nodes.index(device)
        self._clients = clients
        self._child_of = {client: child for child, client in enumerate(clients)}
        self._num_clients = num_clients
        self._places = places
        self._staging_bytes = staging_slot_bytes(model)
        self._num_staging = opened.plan.num_staging
        self.optimizer = PagedOptimizer(
            model, self._node, declaration.rules, num_buffers=opened.plan.num_buffers,
            num_window=opened.plan.num_window, in_memory=opened.plan.in_memory, resumed=opened.resumed,
        )  # fmt: skip
        self._log = OperationLog(num_clients)
        self._root = Root(len(clients), PUSH_WINDOW, opened.plan.num_window)
        self._down = ChunkStream(model)
        self._up = ChunkStream(model)
        self._arriving: deque[Span] = deque()
        """Chunks of pushes that are not there from all workers."""
        self._adding: deque[Span] = deque()
        """Chunks that are, in order, until those before them and they themselves were added."""
        self._consumed: set[tuple[int, int]] = set()
        self._pushed: dict[int, dict[int, tuple[Push, int, int]]] = {}
        """Push -> worker who has values -> (operation, offset or -1, how many chunks it had staged before)."""
        self._num_pushes = [0] * num_clients
        self._num_staged = [0] * num_clients
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
        """A worker's next operation.

        Raises:
            MismatchError: another worker asked for another one.
        """
        operation = from_wire(ask.operation)
        asked, is_first = self._log.on_asked(ask.client, operation, ask.present)
        if isinstance(operation, Push):
            self._note_push(ask, operation, is_first)
        elif isinstance(operation, Pull) and is_first:
            self._down.append(operation.unit)
        return self._carry(self.optimizer.on_asked(asked, is_first=is_first))

    def _note_push(self, ask: PagedAsk, operation: Push, is_first: bool) -> None:
        number = self._num_pushes[ask.client]
        self._num_pushes[ask.client] += 1
        if is_first:
            self._arriving += self._up.append(operation.unit)
            self._pushed[number] = {}
        if not ask.present:
            return
        self._pushed[number][ask.client] = operation, ask.offset, self._num_staged[ask.client]
        if ask.offset < 0:
            self._num_staged[ask.client] += self.declaration.model.num_chunks(operation.unit)

    def on_data(self, record: PagedData) -> list[Out]:
        """Packets that a worker pushes."""
        data = Data(record.begin, record.end, record.stamp, record.asks)
        return self._hop(self._root.on_push_data(self._child_of[record.client], data), is_up=True)

    def on_beat(self, record: PagedBeat) -> list[Out]:
        """A worker's heartbeat of what it pulls."""
        beat = Beat(record.ack, record.credit, record.beyond, record.echo)
        return self._hop(self._root.on_pull_beat(self._child_of[record.client], beat), is_up=False)

    def on_look(self, look: PagedLook) -> list[Out]:
        """A worker wants to see an array of a chunk."""
        number = self._num_looks
        self._num_looks += 1
        self._looks[number] = look.client, look.token
        return self._carry(self.optimizer.on_look(number, look.unit, look.chunk, look.array, look.num_before))

    def on_state(self, state: PagedState) -> list[Out]:
        """A fragment of a worker's own state."""
        text = self._joined(f"state {state.number}", state.client, state.is_last, state.text)
        if text is None:
            return []
        assert self._commits is not None
        return self._record(self._commits.on_state(state.client, state.number, base64.b64decode(text)))

    def on_prepared(self, prepared: PagedPrepared) -> list[Out]:
        """Another optimizer node is prepared."""
        text = self._joined("prepared", prepared.node, prepared.is_last, prepared.text)
        if text is None:
            return []
        assert self._commits is not None
        return self._record(self._commits.on_prepared(prepared.node, prepared.step, versions_from_json(text)))

    def on_committed(self) -> list[Out]:
        """The first optimizer node has written the record."""
        return self._carry(self.optimizer.on_committed())

    def missing(self) -> str:
        """For what this node waits, for people."""
        lacking = self._log.missing()
        waits = [] if lacking is None else [f"ranks {list(lacking[1])} have not called what {lacking[0]}"]
        if self._commits is not None and (commit := self._commits.missing()):
            waits.append(commit)
        return "; ".join(waits)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return self.optimizer.is_quiet

    # --- what the driver has done

    def on_result(self, done: StoreWork | WriteRecord, value: float) -> list[Out]:
        """An instruction was carried out."""
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
            return self._carry(self.optimizer.on_squared(one, value))
        if isinstance(one, Look):
            client, token = self._looks.pop(one.token)
            return [(client, PagedLooked(client, self._device, self.number, token, one.steps))]
        return self._carry(self.optimizer.on_done(one))

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
                    look = self._places[self._looks[one.token][0]].look
                    place = PlaceOfValues(look, int(DType.FLOAT32), is_zeroed=False)
                    out.append(StoreWork(self.number, one, (place,)))
                case _:
                    out.append(StoreWork(self.number, one))
        return out

    def _values(self, add: AddSum) -> tuple[PlaceOfValues, ...]:
        """Where the workers' values of a chunk lie, in the workers' order."""
        begin, _ = self.declaration.model.elements(add.unit, add.chunk)
        places = []
        for client, (push, offset, staged) in sorted(self._pushed[add.push].items()):
            is_gradient = push.array == GRADIENTS
            dtype = self.declaration.gradients if is_gradient else DType.FLOAT32
            if offset >= 0:
                places.append(PlaceOfValues(offset + begin * dtype.itemsize, int(dtype), is_zeroed=True))
            else:
                slot = (staged + add.chunk) % self._num_staging
                at = self._places[client].staging + slot * self._staging_bytes
                places.append(PlaceOfValues(at, int(dtype), is_zeroed=False))
        return tuple(places)

    def _consume(self, push: int, chunk: int) -> list[Out]:
        self._consumed.add((push, chunk))
        end = -1
        while self._adding and (self._adding[0].message, self._adding[0].chunk) in self._consumed:
            span = self._adding.popleft()
            self._consumed.discard((span.message, span.chunk))
            end = span.end
            if span.chunk + 1 == self.declaration.model.num_chunks(span.unit):
                del self._pushed[span.message]
        return self._hop(self._root.on_added(end), is_up=True) if end >= 0 else []

    def _hop(self, wanted: list[HopInstruction], *, is_up: bool) -> list[Out]:
        """Carry out what the root's hops want, of the stream of pushes or of pulls."""
        out: list[Out] = []
        for one in wanted:
            match one:
                case Transmit(child, Beat(ack, credit, beyond, echo)):
                    client = self._clients[child]
                    beat = PagedBeat(client, self._device, self.number, is_up, ack, credit, beyond, echo)
                    out.append((client, beat))
                case Transmit(child, Data(begin, end, stamp, asks)):
                    client = self._clients[child]
                    out.append((client, PagedData(client, self._device, self.number, is_up, begin, end, stamp, asks)))
                case Complete(end):
                    out += self._on_full(end)
                case Free(end) if not is_up:
                    freed = [span.order for span in self._down.below(end)]
                    if freed:
                        out += self._carry(self.optimizer.on_freed(freed[-1] + 1))
        return out

    def _on_full(self, end: int) -> list[Out]:
        out: list[Out] = []
        while self._arriving and self._arriving[0].end <= end:
            span = self._arriving.popleft()
            self._up.forget(span.end)
            self._adding.append(span)
            out += self._carry(self.optimizer.on_full(span.message, span.chunk))
        return out

    def _prepare(self, step: int) -> list[Out]:
        versions = self.optimizer.versions()
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
        """All fragments together, with the last."""
        texts = self._texts.setdefault((what, source), [])
        texts.append(text)
        return "".join(self._texts.pop((what, source))) if is_last else None
