"""Workers' lines and a served model on one host, without MPI or threads: what comes and ends next is drawn."""

from collections import deque
from functools import partial
from pathlib import Path

import numpy as np

from coarse.luwu.client.line import NodeLine
from coarse.luwu.device.places import MemoryLayout, PacketPlan, RootPlaces
from coarse.luwu.device.served import ServedModel
from coarse.luwu.device.trees import places_text
from coarse.luwu.many_to_one.tree import plan_tree
from coarse.luwu.records import PagedAsk, PagedBeat, PagedData, PagedState
from coarse.luwu.steps import StoreOpened, StoreWork, WriteRecord
from coarse.luwu.store.declaration import PUSH_WINDOW, Declaration, MemoryPlan, staging_slot_bytes, window_slot_bytes
from coarse.luwu.store.folder import PagedFolder, aligned
from coarse.luwu.store.instructions import (
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
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.layout import DiskLayout
from coarse.luwu.store.store import Buffers, PagedStore
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType, widen
from coarse.protocol.plan import Placement
from coarse.storage.checksums import checksum_named
from coarse.strategy.builtin import Coarse
from tests.unit.luwu.device.training import MODEL, Event, Training
from tests.unit.luwu.store.memory_disk import MemoryDisk

DEVICE = 0


class Loop(Training):
    """One optimizer node and its workers."""

    def __init__(
        self, declaration: Declaration, seed: int, *, is_born: bool, num_window: int, num_staging: int
    ) -> None:
        super().__init__(declaration, seed, is_born=is_born)
        model = declaration.model
        num_workers = declaration.num_workers
        largest = max(unit.num_elements for unit in model.units)
        gradient_bytes = 2 * largest * declaration.gradients.itemsize if is_born else 0
        plan = MemoryPlan(
            num_window=num_window, num_buffers=2, gradient_bytes=gradient_bytes, num_staging=num_staging,
            in_memory=(1,), total_bytes=0,
        )  # fmt: skip
        window_bytes = num_window * window_slot_bytes(model, 0)
        memory = MemoryLayout(0)
        memory.take(window_bytes)
        places = memory.clients(self.workers, plan, staging_slot_bytes(declaration))
        self.memory = aligned(memory.end)
        opened = StoreOpened(None, plan, "")
        placement = Placement(
            client_nodes=(0,) * num_workers, device_nodes=(0,), local_proxies=(0,) * num_workers,
            ranks=tuple(range(num_workers + 1)), planner=Coarse(), num_sync_groups=1,
        )  # fmt: skip
        tree = plan_tree(DEVICE, 0, placement, {})
        packets = PacketPlan(window=PUSH_WINDOW)
        root_places = RootPlaces(clients=places)
        self.served = ServedModel(MODEL, DEVICE, tree, declaration, opened, packets, root_places)
        layout = DiskLayout(model, 0, 1)
        self.folder = PagedFolder(Path("/disk"), MemoryDisk())
        self.folder.open_files(layout.file_bytes[0], layout.sum_file_bytes[0])
        window = self.memory[:window_bytes].reshape(num_window, -1)
        self.store = PagedStore(
            layout, [self.folder], Buffers(model, 2), window, (1,), checksum_named("crc32"),
            lambda group: kernel_of(declaration.optimizer, group), declaration.group_of,
        )  # fmt: skip
        for worker, place in places.items():
            said = places_text(DEVICE, place, plan, packets)
            said |= {"window": 0, "num_window": num_window}
            self.lines[worker][DEVICE] = NodeLine(worker, DEVICE, MODEL, 0, declaration, said)
        self.to_device: list[deque[bytes]] = [deque() for _ in self.workers]
        self.to_worker: list[deque[bytes]] = [deque() for _ in self.workers]
        self.work: list[StoreWork | WriteRecord] = []

    def tell(self, worker: int, record: object) -> None:
        self.to_device[worker].append(encode(record))

    def view(self, line: NodeLine, offset: int, nbytes: int) -> np.ndarray:
        return self.memory[offset : offset + nbytes]

    def events(self) -> list[Event]:
        found: list[Event] = [partial(self.on_device, queue) for queue in self.to_device if queue]
        found += [partial(self.hear, worker) for worker, queue in enumerate(self.to_worker) if queue]
        return found + [partial(self.do, work) for work in self.work]

    def hear(self, worker: int) -> None:
        self.on_worker(worker, decode(self.to_worker[worker].popleft()))

    def on_device(self, queue: deque[bytes]) -> None:
        record, served = decode(queue.popleft()), self.served
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

    def do(self, work: StoreWork | WriteRecord) -> None:
        self.work.remove(work)
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
