"""Worker's end of a model in the network: its framework's calls, and a carrying thread (LuWu's NIC).

Units are pulled into memory of the framework's while it computes, and pushed from device memory, where gradients are
born if there is room. Errors of optimizer nodes come with the next call that waits, or asks for an operation.
"""

import base64
import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coarse import errors
from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.protocol import ToDevice
from coarse.errors import CoarseError, DeadRankError, StallError, UnsupportedError
from coarse.luwu.client.copying import copy_packets
from coarse.luwu.client.inquiry import Inquiry
from coarse.luwu.client.line import Agreement, GradientRoom, NodeLine, Pulled, Pushed, Timeline
from coarse.luwu.records import (
    PagedBeat,
    PagedClose,
    PagedClosed,
    PagedCommitted,
    PagedData,
    PagedFailed,
    PagedLook,
    PagedLooked,
    PagedNorm,
    PagedOpen,
    PagedOpened,
    PagedState,
    PagedStatus,
)
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.layout import ALIGN_ELEMENTS
from coarse.luwu.store.operations import (
    GRADIENTS,
    AskNorm,
    CommitNow,
    Discard,
    EndPass,
    Freeze,
    Operation,
    Push,
    SetSteps,
    Step,
)
from coarse.protocol.fragments import fragments, shortened
from coarse.storage.allocator import RegionAllocator
from coarse.storage.region import DeviceMemory

_OPENING_S = 3600.0
"""Seconds that disks may take to set aside room for all states."""


class RemoteModel:
    """Model of this worker; all but the carrying runs in the threads that call."""

    def __init__(self, number: int, link: DeviceLink, memories: Mapping[int, DeviceMemory]) -> None:
        self.number = number
        self.nodes: tuple[int, ...] = ()
        """Device of each optimizer node."""
        self._link = link
        self.client = link.protocol.client
        self._memories = memories
        self._lines: dict[int, NodeLine] = {}  # by device
        self._rooms: dict[int, RegionAllocator] = {}
        self._flying: list[tuple[Pushed, GradientRoom]] = []  # rooms whose values are being added
        self._texts: dict[int, list[str]] = {}
        self._opened: dict[int, dict[str, Any]] = {}
        self._failed: CoarseError | None = None
        self._norms: dict[int, float] = {}
        self._looked: dict[int, tuple[int, ...]] = {}  # token -> the steps of the unit that was looked at
        self._inquiry = Inquiry(link, number, self._near)
        self._tokens = itertools.count(1)
        self.committed_step = -1
        """Last committed step as far as it is known here; -1 if none."""
        self.on_committed: Callable[[int], object] | None = None
        """Callback for each newest committed step, called by the carrying thread."""
        self._num_commits = 0  # that were asked for
        self._num_committed = 0
        self.is_dirty = False
        """True if something was changed that is in no commit which was asked for."""
        self._closed: set[int] = set()
        self.timeline: Timeline | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.agreement: Agreement | None = None  # on exponents, where integers are pushed
        self._handlers: dict[type, Callable[[Any], None]] = {
            PagedOpened: self._on_opened,
            PagedFailed: self._on_failed,
            PagedData: lambda data: self._lines[data.device].on_data(data),
            PagedBeat: lambda beat: self._lines[beat.device].on_beat(beat),
            PagedNorm: lambda norm: self._norms.__setitem__(norm.device, norm.square),
            PagedCommitted: self._on_committed,
            PagedLooked: lambda looked: self._looked.__setitem__(looked.token, looked.steps),
            PagedClosed: lambda closed: self._closed.add(closed.device),
            PagedStatus: self._inquiry.on_status,
        }
        link.protocol.models[number] = lambda record: self._handlers[type(record)](record)

    # --- opening and closing

    def open(self, declaration: Declaration) -> None:
        """Join the model at all its optimizer nodes; all workers do, and worker 0's declaration counts.

        Raises:
            StorageError, CapacityError: what a node says of its folders, disks or memory.
            StallError: a worker has not come.
        """
        self.declaration = declaration
        self.nodes = declaration.nodes
        resumed = ""
        for node, device in enumerate(self.nodes):
            declared = {"declaration": declaration.to_json(), "resumed": resumed}
            text = json.dumps(declared) if self.client == 0 else ""
            self._link.tell([
                ToDevice(self._near(device), PagedOpen(self.client, device, self.number, is_last, part))
                for is_last, part in fragments(text)
            ])  # fmt: skip
            self._wait(partial(self._is_open, device), f"optimizer node {node} to open", _OPENING_S)
            opened = self._opened[device]
            if opened["resumed"] is not None and node == 0:
                resumed = opened["resumed"].get("commit", "")
            self._rooms[device] = RegionAllocator(opened["gradient_bytes"])
        self.resumed = self._opened[self.nodes[0]]["resumed"]
        if self.resumed is not None:
            self.committed_step = self.resumed["step"]
        self._thread = threading.Thread(target=self._carry, name=f"coarse-model-{self.number}", daemon=True)
        self._thread.start()

    def _is_open(self, device: int) -> bool:
        return {"hub", "told"} <= self._opened.get(device, {}).keys()

    @property
    def told(self) -> list[str]:
        """Statement of each optimizer node about its folders, memory and bytes per step."""
        return [self._opened[device]["told"] for device in self.nodes]

    @property
    def state(self) -> bytes | None:
        """Own state of this worker at the step that training resumes from; None if it does not resume."""
        return None if self.resumed is None else base64.b64decode(self.resumed["state"])

    def close(self, reason: str = "") -> None:
        """Leave the model; returns once all workers have, and its folders are closed.

        With a `reason` the model is given up: it goes no further for anybody, and nothing is raised here.
        """
        if self._is_closed:
            return
        with self._link.lock:
            self._is_closed = True
            self._link.send([
                ToDevice(self._near(device), PagedClose(self.client, device, self.number, shortened(reason)))
                for device in self.nodes
            ])  # fmt: skip
            self._link.ring_bells()
        if self._thread is not None:
            self._thread.join()
        try:
            came = self._link.wait_until(lambda: self._closed.issuperset(self.nodes))
        except DeadRankError:
            came = True  # whoever works with the others is told
            reason = reason or "a rank is gone"
        if self.agreement is not None:
            self.agreement.close(reason)
        if not came and not reason and self._failed is None:
            raise self.stalled("all ranks to close the model")

    # --- operations

    def pull(self, unit: int, target: np.ndarray) -> Pulled:
        """Start to pull a unit's parameters into (n,) uint8, which is written to until the pull is done."""
        with self._asking():
            return self._line(unit).pull(unit, target)

    def wait_for_pull(self, pulled: Pulled, timeout_s: float | None = None) -> None:
        """Return once all packets of a pull are there."""
        self._wait(lambda: pulled.is_done, f"the parameters of {self._name(pulled.unit)}", timeout_s)

    def all_reduce(self, unit: int, values: np.ndarray) -> Pulled:
        """Start to combine a unit's (n,) of all workers in place, in an all-reduce; the pull's end is its end."""
        with self._asking():
            line = self._line(unit)
            line.push(Push(unit, GRADIENTS, True), 1, source=values)
            return line.pull(unit, values.view(np.uint8))

    def room_for(self, unit: int) -> GradientRoom | None:
        """Return device memory for a unit's gradients; None if pushes that are still to come hold all of it."""
        line = self._line(unit)
        gradients = self.declaration.gradients
        nbytes = self.declaration.model.units[unit].num_elements * gradients.itemsize
        if nbytes > line.opened["gradient_bytes"]:
            return None
        rooms = self._rooms[line.device]
        while True:
            offset = rooms.allocate(nbytes, ALIGN_ELEMENTS)
            if offset is not None:
                at = line.opened["gradients"] + offset
                values = self._memories[line.hub].view(at, nbytes).view(gradients.storage)
                return GradientRoom(line.device, at, values)
            flying = next((pushed for pushed, room in self._flying if room.device == line.device), None)
            if flying is None:
                return None
            self._wait(partial(getattr, flying, "is_done"), f"room for the gradients of {self._name(unit)}")
            self._land()

    def push_gradients(
        self, unit: int, present: int, *, is_last: bool, room: GradientRoom | None, source: np.ndarray | None = None
    ) -> Pushed:
        """Push a unit's gradients: those in `room`, those in `source`, or none where no tensor is `present`.

        The room is given back; the source is read until the push is done.
        """
        push = Push(unit, GRADIENTS, is_last)
        self._land()
        with self._asking():
            line = self._line(unit)
            if self.agreement is not None:
                pushed = line.push(push, present, source=source, is_ready=False)
                self.agreement.put(line, unit, pushed, source if present else None)
                return pushed
            if room is None:
                return line.push(push, present, source=source)
            pushed = line.push(push, present, offset=room.offset if present else -1)
            self._flying.append((pushed, room))
            return pushed

    def supply(self, line: NodeLine, pushed: Pushed, exponents: np.ndarray) -> None:
        """Let a push's values be packed with exponents that were agreed on."""
        with self._link.lock:
            line.supply(pushed, exponents)
            self._link.tell_waiting()

    def fail(self, error: Exception) -> None:
        """Stop the model on this worker."""
        with self._link.lock:
            if isinstance(error, DeadRankError):
                error = self._with_way_back(error)
            known = error if isinstance(error, CoarseError) else CoarseError(f"rank {self.client}: {error!r}")
            self._failed = self._failed or known
            self._link.tell_waiting()

    def push_values(self, unit: int, array: int, present: int, values: np.ndarray | None) -> None:
        """Replace an array of a unit (0: the parameters) by one worker's (n,) float32; return once it is read."""
        with self._asking():
            self.is_dirty = True
            pushed = self._line(unit).push(Push(unit, array, False), present, source=values)
        self.wait_for_push(pushed, unit)

    def wait_for_push(self, pushed: Pushed, unit: int) -> None:
        """Return once all of a unit's values were added, or have left the host, and their memory is free."""
        self._wait(lambda: pushed.is_done, f"the values of {self._name(unit)} to be taken")

    def freeze(self, settings: str, divisor: int) -> None:
        """Freeze the settings that updates are made with before the step."""
        self._ask_all(Freeze(settings, divisor))

    def end_pass(self) -> None:
        """Tell the nodes that a backward pass has ended."""
        self._ask_all(EndPass())

    def step(self, step: int, settings: str, coefficient: float, divisor: int) -> None:
        """Have all units with gradients updated; return at once."""
        self._ask_all(Step(step, settings, coefficient, divisor))
        self.is_dirty = step % self.declaration.commit_every != 0
        self._num_commits += not self.is_dirty

    def discard(self) -> None:
        """Discard all that was pushed since the last step."""
        self._ask_all(Discard())

    def norm_square(self) -> float:
        """Return the sum of squares of all sums of gradients, once all workers have asked for it."""
        self._norms.clear()
        self._ask_all(AskNorm())
        self._wait(lambda: len(self._norms) == len(self.nodes), "the gradients' norm")
        return math.fsum(self._norms[device] for device in self.nodes)

    def send_state(self, state: bytes) -> None:
        """Send this worker's own state for the commit that was asked for last."""
        first, number = self.nodes[0], self._num_commits - 1
        self._link.tell([
            ToDevice(self._near(first), PagedState(self.client, first, self.number, number, is_last, part))
            for is_last, part in fragments(base64.b64encode(state).decode())
        ])  # fmt: skip

    def commit(self, step: int) -> None:
        """Have everything committed as that of a step; the state is to be sent next."""
        self._ask_all(CommitNow(step))
        self.is_dirty = False
        self._num_commits += 1

    def wait_for_commits(self) -> None:
        """Return once all commits that were asked for are made."""
        wanted = self._num_commits
        self._wait(lambda: self._num_committed >= wanted, "the last step to be committed")

    def set_steps(self, unit: int, steps: Sequence[int]) -> None:
        """Set the number of steps that each tensor of a unit counts as having had."""
        with self._asking():
            self.is_dirty = True
            self._line(unit).ask(SetSteps(unit, tuple(steps)))

    def look(self, unit: int, array: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """Return an array of a unit, (n,) float32, after this worker's operations alone, and steps by tensor."""
        steps: tuple[int, ...] = ()
        line = self._line(unit)
        model = self.declaration.model
        found = np.empty(model.units[unit].num_elements, np.float32)
        for chunk, (begin, end) in enumerate(model.chunks(unit)):
            token = next(self._tokens)
            with self._asking():
                record = PagedLook(
                    self.client, line.device, self.number, token, unit, chunk, array, line.num_operations
                )
                self._link.send([ToDevice(self._near(line.device), record)])
            self._wait(partial(self._looked.__contains__, token), f"the values of {self._name(unit)}")
            nbytes = (end - begin) * found.itemsize
            found[begin:end] = self._memories[line.hub].view(line.opened["look"], nbytes).view(np.float32)
            steps = self._looked.pop(token)
        return found, steps

    @property
    def is_sound(self) -> bool:
        """True if nothing ended the model before its time."""
        return self._failed is None

    def require_sound(self) -> None:
        """Raise the failure that an optimizer node has told, if there is one."""
        if self._failed is not None:
            raise self._failed

    # --- records

    def _on_opened(self, opened: PagedOpened) -> None:
        """Take an answer of the node or, where that is another, of the device that this worker is attached to.

        The line begins when the latter answers: its next record may bring what workers further on asked for.
        """
        texts = self._texts.setdefault(opened.device, [])
        texts.append(opened.text)
        if opened.is_last:
            device, said = opened.device, json.loads("".join(self._texts.pop(opened.device)))
            known = self._opened.setdefault(device, {})
            known |= said
            if "hub" in said:
                node = self.nodes.index(device)
                self._lines[device] = NodeLine(self.client, device, self.number, node, self.declaration, known)

    def _on_failed(self, failed: PagedFailed) -> None:
        if self._failed is None:
            kind: type[CoarseError] = getattr(errors, failed.error, CoarseError)
            self._failed = kind(f"rank {self.client}: {failed.text}{self._way_back()}")

    def _on_committed(self, committed: PagedCommitted) -> None:
        if committed.step > self.committed_step:
            self.committed_step = committed.step
            if self.on_committed is not None:
                self.on_committed(committed.step)
        self._num_committed += 1

    def _with_way_back(self, error: DeadRankError) -> DeadRankError:
        return DeadRankError(f"{error}{self._way_back()}", rank=error.rank)

    def _way_back(self) -> str:
        if self.committed_step < 0:
            return ""
        return f"; step {self.committed_step} is the last committed one: resume=True goes on from there"

    # --- within

    def _near(self, device: int) -> int:
        """Return the device of this host to which records for a node go."""
        if device in self._lines:
            return self._lines[device].hub
        return device if device in self._memories else self._link.protocol.local_proxy

    def _line(self, unit: int) -> NodeLine:
        return self._lines[self.nodes[self.declaration.model.device_of[unit]]]

    def _name(self, unit: int) -> str:
        return repr(self.declaration.model.units[unit].name or "the root")

    def _asking(self) -> "_Asking":
        return _Asking(self)

    def _ask_all(self, operation: Operation) -> None:
        with self._asking():
            for line in self._lines.values():
                line.ask(operation)

    def flush(self) -> None:
        """Send the records that lines have gathered; the lock is held."""
        for device, line in self._lines.items():
            if line.out:
                records, line.out = line.out, []
                self._link.send([ToDevice(self._near(device), record) for record in records])
        self._link.ring_bells()

    def _land(self) -> None:
        """Give back the rooms whose gradients were added."""
        for pushed, room in [one for one in self._flying if one[0].is_done]:
            self._flying.remove((pushed, room))
            opened = self._opened[room.device]
            self._rooms[room.device].free(room.offset - opened["gradients"])

    def _wait(self, is_done: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Wait for something; a node's failure or a rank's death ends the wait."""
        try:
            came = self._link.wait_until(lambda: is_done() or self._failed is not None, timeout_s)
        except DeadRankError as error:
            raise self._with_way_back(error) from error
        if is_done():
            return
        self.require_sound()
        assert not came
        raise self.stalled(what, timeout_s)

    def stalled(self, what: str, waited_s: float | None = None) -> StallError:
        """Return the error of a wait, with the nodes' reasons; the wait was `stall_timeout_s` by default."""
        limit_s = self._link.stall_timeout_s if waited_s is None else waited_s
        return StallError(
            f"rank {self.client}: waited {limit_s:g} s for {what}; {self._inquiry.reasons(self.nodes)}; see what they "
            f"wait for, or raise stall_timeout_s{self._way_back()}"
        )

    # --- the thread that carries

    def _carry(self) -> None:
        try:
            while not self._is_closed:
                self._link.wait_until(self._has_work, math.inf)
                self._copy_all()
        except DeadRankError as error:
            with self._link.lock:
                self._failed = self._failed or self._with_way_back(error)
        except BaseException as error:
            with self._link.lock:
                self._failed = self._failed or CoarseError(f"rank {self.client} carries no bytes any more: {error!r}")
            raise

    def _has_work(self) -> bool:
        return self._is_closed or self.has_copies or any(line.out for line in self._lines.values())

    @property
    def has_copies(self) -> bool:
        """True if packets wait to be copied."""
        return any(line.copies for line in self._lines.values())

    def _copy_all(self) -> None:
        while True:
            with self._link.lock:
                self.flush()
                found = next((line for line in self._lines.values() if line.copies), None)
                if found is None:
                    return
                copy = found.copies.popleft()
            begin_s = 0.0 if self.timeline is None else self.timeline.now_s()
            copy_packets(found, copy, self._memories[found.hub].view, self.declaration)
            if self.timeline is not None:
                self.timeline.copied(copy, begin_s, self.timeline.now_s())
            with self._link.lock:
                found.on_copied(copy)
                if copy.pulled is not None and copy.pulled.is_done:
                    self._link.tell_waiting()


class _Asking:
    """Context that holds the link's lock, and sends the records of operations at its end."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model

    def __enter__(self) -> None:
        model = self._model
        if model._is_closed:
            raise UnsupportedError(f"rank {model.client}: the model was closed; make it anew")
        model.require_sound()
        model._link.lock.acquire()

    def __exit__(self, *_: object) -> None:
        model = self._model
        model.flush()
        if model.has_copies:  # for the thread that carries
            model._link.tell_waiting()
        model._link.lock.release()


def new_model(client: Client) -> RemoteModel:
    """Make a model in the network, to be opened by all workers."""
    return RemoteModel(client.next_model(), client.link, client.memories)
