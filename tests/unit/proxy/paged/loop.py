"""Workers' lines and a served model on one host, without MPI or threads: what comes and ends next is drawn."""

import json
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coarse.client.paged.line import Copy, NodeLine, Pulled
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType
from coarse.protocol.paged_records import (
    PagedAsk,
    PagedBeat,
    PagedCommitted,
    PagedData,
    PagedLooked,
    PagedNorm,
    PagedState,
)
from coarse.protocol.plan import Placement
from coarse.proxy.paged.places import ClientPlaces, PacketPlan, RootPlaces
from coarse.proxy.paged.served import ServedModel
from coarse.proxy.paged.trees import places_text
from coarse.proxy.paged_steps import StoreOpened, StoreWork, WriteRecord
from coarse.storage.fixed_point import adder_of
from coarse.storage.paged.declaration import PUSH_WINDOW, Declaration, MemoryPlan, staging_slot_bytes, window_slot_bytes
from coarse.storage.paged.folder import PagedFolder, aligned
from coarse.storage.paged.image import checksum_named
from coarse.storage.paged.instructions import (
    AddSum,
    Assign,
    ClearImage,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.storage.paged.kernels import kernel_of
from coarse.storage.paged.layout import DiskLayout
from coarse.storage.paged.operations import GRADIENTS, CommitNow, EndPass, Push, Step
from coarse.storage.paged.store import Buffers, PagedStore
from coarse.storage.reduce import narrowed, widen
from coarse.transport.many_to_one.tree import plan_tree
from tests.unit.storage.paged.memory_disk import MemoryDisk

DEVICE = 0


class Loop:
    """One optimizer node and its workers; `is_born`: whether gradients lie in device memory from the beginning."""

    def __init__(
        self, declaration: Declaration, seed: int, *, is_born: bool, num_window: int, num_staging: int
    ) -> None:
        model = declaration.model
        self.declaration, self.model = declaration, model
        self.rng = random.Random(seed)
        num_workers = declaration.num_workers
        largest = max(unit.num_elements for unit in model.units)
        gradient_bytes = 2 * largest * declaration.gradients.itemsize if is_born else 0
        plan = MemoryPlan(
            num_window=num_window, num_buffers=2, gradient_bytes=gradient_bytes, num_staging=num_staging,
            in_memory=(1,), total_bytes=0,
        )  # fmt: skip
        window_bytes = num_window * window_slot_bytes(model, 0)
        slot = staging_slot_bytes(model)
        each = -(-gradient_bytes // 4096) * 4096 + (num_staging + 1) * slot
        self.memory = aligned(window_bytes + num_workers * each)
        places = {}
        for worker in range(num_workers):
            first = window_bytes + worker * each
            staging = first + each - (num_staging + 1) * slot
            places[worker] = ClientPlaces(first, staging, staging + num_staging * slot)
        opened = StoreOpened(None, plan, "")
        placement = Placement(
            client_nodes=(0,) * num_workers, device_nodes=(0,), local_proxies=(0,) * num_workers,
            ranks=tuple(range(num_workers + 1)), collective="in_place", num_sync_groups=1,
        )  # fmt: skip
        tree = plan_tree(DEVICE, 0, placement, {})
        packets = PacketPlan(window=PUSH_WINDOW)
        self.served = ServedModel(0, DEVICE, (DEVICE,), tree, declaration, opened, packets, RootPlaces(clients=places))
        layout = DiskLayout(model, 0, 1)
        self.folder = PagedFolder(Path("/disk"), MemoryDisk())
        self.folder.open_files(layout.file_bytes[0], layout.sum_file_bytes[0])
        window = self.memory[:window_bytes].reshape(num_window, -1)
        self.store = PagedStore(
            layout, [self.folder], Buffers(model, 2), window, (1,), checksum_named("crc32"),
            lambda group: kernel_of(declaration.optimizer, group), declaration.group_of,
        )  # fmt: skip
        self.add = adder_of(declaration.sum, num_workers)
        self.lines = [
            NodeLine(worker, DEVICE, 0, 0, declaration, {
                **places_text(DEVICE, place, gradient_bytes, num_staging, packets), "window": 0,
                "num_window": num_window,
            })
            for worker, place in places.items()
        ]  # fmt: skip
        self.to_device: list[deque[bytes]] = [deque() for _ in self.lines]
        self.to_worker: list[deque[bytes]] = [deque() for _ in self.lines]
        self.work: list[StoreWork | WriteRecord] = []
        self.programs: list[Iterator[object]] = []
        self.waits: list[object] = []
        self.committed = [-1] * num_workers
        self.norms: list[list[float]] = [[] for _ in self.lines]
        self.looked: list[dict[int, tuple[int, ...]]] = [{} for _ in self.lines]
        self.rooms_in_use = 0

    def run(self, programs: list[Iterator[object]]) -> None:
        """Run each worker's program, which yields what it waits for, to its end."""
        self.programs = programs
        self.waits = [None] * len(programs)
        running = set(range(len(programs)))
        for _ in range(200_000):
            choices = [("program", w) for w in running if self.may_go_on(w)]
            choices += [("device", w) for w, queue in enumerate(self.to_device) if queue]
            choices += [("worker", w) for w, queue in enumerate(self.to_worker) if queue]
            choices += [("copy", w) for w, line in enumerate(self.lines) if line.copies]
            choices += [("work", n) for n in range(len(self.work))]
            if not choices:
                assert not running, [(w, self.waits[w], self.served.missing()) for w in running]
                return
            kind, number = self.rng.choice(choices)
            if kind == "program":
                try:
                    self.waits[number] = next(self.programs[number])
                except StopIteration:
                    running.discard(number)
            elif kind == "device":
                self.on_device(decode(self.to_device[number].popleft()))
            elif kind == "worker":
                self.on_worker(number, decode(self.to_worker[number].popleft()))
            elif kind == "copy":
                self.copy(self.lines[number])
            else:
                self.do(self.work.pop(number))
            self.post()
        raise AssertionError("it goes on for ever")

    def may_go_on(self, worker: int) -> bool:
        wait = self.waits[worker]
        return wait is None or bool(wait())  # type: ignore[operator]

    def post(self) -> None:
        for worker, line in enumerate(self.lines):
            self.to_device[worker] += [encode(record) for record in line.out]
            line.out.clear()

    def on_device(self, record: object) -> None:
        served = self.served
        handlers = {
            PagedAsk: served.on_ask, PagedData: served.on_data, PagedBeat: served.on_beat, PagedState: served.on_state,
        }  # fmt: skip
        self.send(handlers[type(record)](record))  # type: ignore[operator]

    def send(self, out: list[object]) -> None:
        for one in out:
            if isinstance(one, StoreWork | WriteRecord):
                self.work.append(one)
            else:
                worker, record = one  # type: ignore[misc]
                self.to_worker[worker].append(encode(record))

    def on_worker(self, worker: int, record: object) -> None:
        line = self.lines[worker]
        match record:
            case PagedData():
                line.on_data(record)
            case PagedBeat():
                line.on_beat(record)
            case PagedCommitted():
                self.committed[worker] = record.step
            case PagedNorm():
                self.norms[worker].append(record.square)
            case PagedLooked():
                self.looked[worker][record.token] = record.steps

    def copy(self, line: NodeLine) -> None:
        copy: Copy = line.copies.popleft()
        begin, end = line.elements(copy)
        at = copy.offset
        if copy.pulled is not None:
            size = self.model.pulled.itemsize
            assert copy.pulled.target is not None
            copy.pulled.target[begin * size : end * size] = self.memory[at : at + (end - begin) * size]
        else:
            assert copy.pushed is not None
            assert copy.pushed.source is not None
            source = copy.pushed.source[begin:end].view(np.uint8)
            self.memory[at : at + len(source)] = source
        line.on_copied(copy)

    def do(self, work: StoreWork | WriteRecord) -> None:
        value = 0.0
        if isinstance(work, StoreWork):
            one, store = work.instruction, self.store
            match one:
                case AddSum():
                    value = self.add_sum(one, work)
                case SquareSum():
                    value = store.square_sum(one)
                case Sync():
                    self.folder.sync()
                case _:
                    calls = {
                        ReadPulled: store.read_pulled, ReadImage: store.read_image, ClearImage: store.clear_image,
                        ReadSum: store.read_sum, WriteSum: store.write_sum, WriteImage: store.write_image,
                        Update: store.update, Assign: store.assign,
                    }  # fmt: skip
                    calls[type(one)](one)  # type: ignore[operator]
        self.send(self.served.on_result(work, value))

    def add_sum(self, one: AddSum, work: StoreWork) -> float:
        begin, end = self.model.elements(one.unit, one.chunk)
        given = []
        for place in work.values:
            dtype = DType(place.dtype)
            raw = self.memory[place.offset : place.offset + (end - begin) * dtype.itemsize].view(dtype.storage)
            given.append((raw, raw if dtype is DType.FLOAT32 else widen(raw, dtype), place.is_zeroed))
        square = self.store.add_sum(one, [wide for _, wide, _ in given], self.add)
        for raw, _, is_zeroed in given:
            if is_zeroed:
                raw[:] = 0
        return square

    # --- what workers do

    def program(self, worker: int, steps: int) -> Iterator[object]:
        """Values from worker 0, then steps of pulls forward and backward, pushes and a step."""
        line, model = self.lines[worker], self.model
        for unit, of in enumerate(model.units):
            values = self.first(unit) if worker == 0 else None
            present = (1 << len(of.tensors)) - 1 if worker == 0 else 0
            line.push(Push(unit, 0, False), present, source=values)
        line.ask(CommitNow(0))
        self.to_device[worker].append(encode(PagedState(worker, DEVICE, 0, 0, True, "")))
        for step in range(1, steps + 1):
            for unit in (*range(len(model.units)), *reversed(range(len(model.units)))):
                is_backward = unit in self.seen_in(worker, step)
                pulled = self.pull(line, unit)
                yield lambda pulled=pulled: pulled.is_done
                self.check(step, unit, pulled)
                if is_backward and model.units[unit].is_trainable:
                    yield from self.push(worker, step, unit)
                self.seen_in(worker, step).add(unit)
            line.ask(EndPass())
            line.ask(Step(step, json.dumps(self.declaration.groups), 1.0, self.declaration.num_workers))
            self.to_device[worker].append(encode(PagedState(worker, DEVICE, 0, step, True, "")))
        yield lambda: self.committed[worker] == steps

    def seen_in(self, worker: int, step: int) -> set[int]:
        self._seen = getattr(self, "_seen", {})
        return self._seen.setdefault((worker, step), set())

    def pull(self, line: NodeLine, unit: int) -> Pulled:
        return line.pull(unit, np.empty(self.model.units[unit].num_elements * self.model.pulled.itemsize, np.uint8))

    def push(self, worker: int, step: int, unit: int) -> Iterator[object]:
        line, dtype = self.lines[worker], self.declaration.gradients
        values = self.gradient(worker, step, unit)
        present = (1 << len(self.model.units[unit].tensors)) - 1
        stored = values if dtype is DType.FLOAT32 else narrowed(values, dtype)
        if not line.opened["gradient_bytes"]:
            line.push(Push(unit, GRADIENTS, False), present, source=stored)
            return
        offset = line.opened["gradients"] + self.rng.randrange(2) * 64
        if self.model.units[unit].num_elements * dtype.itemsize + 64 > line.opened["gradient_bytes"]:
            offset = line.opened["gradients"]
        room = self.memory[offset : offset + stored.nbytes].view(dtype.storage)
        assert not room.any()  # it was left zeroed
        room += stored
        pushed = line.push(Push(unit, GRADIENTS, False), present, offset=offset)
        yield lambda: pushed.is_done

    # --- what should come of it

    def first(self, unit: int) -> np.ndarray:
        return self.drawn(unit, 0, 0, 0)

    def gradient(self, worker: int, step: int, unit: int) -> np.ndarray:
        return self.drawn(unit, 1, worker, step)

    def drawn(self, unit: int, *what: int) -> np.ndarray:
        of = self.model.units[unit]
        values = np.zeros(of.num_elements, np.float32)
        rng = np.random.default_rng([unit, *what])
        for tensor, begin in zip(of.tensors, of.begins, strict=True):
            values[begin : begin + tensor.num_elements] = rng.normal(size=tensor.num_elements)
        return values

    def reference(self, unit: int, steps: int) -> np.ndarray:
        values = self.first(unit)
        of = self.model.units[unit]
        if not of.is_trainable:
            return values
        kernel = kernel_of(self.declaration.optimizer, self.declaration.groups[0])
        states = [np.zeros_like(values) for _ in range(kernel.num_states)]
        for step in range(1, steps + 1):
            parts = [self.gradient(worker, step, unit) for worker in range(self.declaration.num_workers)]
            dtype = self.declaration.gradients
            parts = [part if dtype is DType.FLOAT32 else widen(narrowed(part, dtype), dtype) for part in parts]
            total = np.empty_like(values)
            self.add(parts, total)
            kernel.step(values, total / np.float32(len(parts)), states, step)
        return values

    def check(self, step: int, unit: int, pulled: Pulled) -> None:
        assert pulled.target is not None
        right = self.reference(unit, step - 1)
        if self.model.pulled is not DType.FLOAT32:
            right = narrowed(right, self.model.pulled)
        assert pulled.target.tobytes() == right.tobytes(), (step, unit)
