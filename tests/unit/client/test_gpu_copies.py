"""A worker's copies to and from GPUs: when its pushes leave, when its results may be used, and what errors become."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientProtocol
from coarse.errors import GpuError, StallError
from coarse.gpu.available import use
from coarse.protocol.clock import WallClock
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Leave, Push, Ready, Registered, Tables, key_of
from coarse.storage.gpu_memory import create_on_gpu, own_memory
from coarse.storage.region import DeviceMemory, create_memory_file
from coarse.strategy.builtin import Coarse
from coarse.transport.mailbox import Mailbox, control_bytes
from tests.support.gpu_stand_in import StandInArray, StandInEvent, StandInGpus

PLACE = Placement(
    client_nodes=(0,),
    device_nodes=(0,),
    local_proxies=(0,),
    ranks=(0, 1),
    planner=Coarse(),
    num_sync_groups=1,
)
NUM_ELEMENTS = 3000
W = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (NUM_ELEMENTS,), 0)
HOST_BYTES = 1 << 20


class Held:
    """Events that are not done before a test lets them be."""

    def __init__(self, monkeypatch) -> None:
        self._may_go = threading.Event()
        real = StandInEvent.wait

        def wait(event: StandInEvent) -> None:
            if threading.current_thread().name == "coarse-departures":
                assert self._may_go.wait(20)
            real(event)

        monkeypatch.setattr(StandInEvent, "wait", wait)

    def let_go(self) -> None:
        self._may_go.set()


class Worker:
    """A client with one key, whose device is this test."""

    def __init__(self, *, on_gpu: bool) -> None:
        self.gpus = StandInGpus(1)
        use(self.gpus)
        control = memoryview(bytearray(control_bytes(2)))
        run = f"test-gpu-copies-{os.getpid()}"
        self.mailbox, self.device = Mailbox(0, 2, (1,), control, run), Mailbox(1, 2, (0,), control, run)
        protocol = ClientProtocol(0, PLACE)
        protocol.on_record(Tables(1, ((0, 0, 0, 1 << 20),)))
        self.link = DeviceLink(protocol, PLACE, self.mailbox, WallClock(), 5.0)
        if on_gpu:
            file = create_on_gpu(0, "test", 1 << 20, 1)
            self.memory = own_memory(file, file.descriptor)
            offset = self.memory.keys_begin
        else:
            self.memory = DeviceMemory(create_memory_file("test", HOST_BYTES), HOST_BYTES)
            offset = 2048
        protocol.register(W)
        protocol.on_record(Registered(key_of("w"), 1, 0, offset))
        self.client = Client(self.link, {0: self.memory})
        self._region = self.memory.view(offset, W.nbytes).view(np.dtype(np.float32))

    @property
    def region(self) -> np.ndarray:
        """What lies in the region now, whatever is still under way."""
        return self._region.values if isinstance(self._region, StandInArray) else self._region

    def on_gpu(self, value: float) -> StandInArray:
        """An array that the user's stream has yet to fill."""
        array = self.gpus.empty(0, (NUM_ELEMENTS,), np.dtype(np.float32))
        self.gpus.current_stream(0).arrays.copy(array, np.full(NUM_ELEMENTS, value, np.float32))
        return array

    def has_pushed(self) -> bool:
        """Whether a push has come since this was asked last."""
        return any(isinstance(record, Push) for record in self.device.records())

    def await_push(self) -> None:
        for _ in range(2000):
            if self.has_pushed():
                return
            self.device.sleep(0.01)
        raise AssertionError("no push has come")

    def answer(self, value: float) -> None:
        """The device has written a result."""
        self.region[:] = value
        self.device.send(0, Ready(key_of("w"), 0, 1, True))
        self.device.ring_bells()

    def close(self) -> None:
        self.mailbox.close()
        self.device.close()
        self.memory.close()
        use(None)


@pytest.fixture(params=[True, False], ids=["region on a GPU", "region on the host"])
def worker(request) -> Iterator[Worker]:
    made = Worker(on_gpu=request.param)
    yield made
    made.close()


@pytest.fixture
def gpu_worker() -> Iterator[Worker]:
    made = Worker(on_gpu=True)
    yield made
    made.close()


@pytest.fixture
def host_worker() -> Iterator[Worker]:
    made = Worker(on_gpu=False)
    yield made
    made.close()


def in_stream(worker: Worker, array: StandInArray) -> np.ndarray:
    """What an operation of the user's stream finds in an array."""
    found = worker.gpus.empty(0, array.shape, array.dtype)
    stream = worker.gpus.current_stream(0)
    stream.arrays.copy(found, array)
    stream.record().wait()
    return found.values


def test_a_push_leaves_once_its_copy_is_done_and_nobody_waits_for_that(worker, monkeypatch):
    held = Held(monkeypatch)
    array = worker.on_gpu(3.0)
    worker.client.push_pull(W, array, array)  # returns, though nothing has been copied
    assert not worker.has_pushed()
    assert not (worker.region == 3.0).any()
    held.let_go()
    worker.await_push()
    assert (worker.region == 3.0).all()


def test_a_result_is_there_for_the_user_s_stream_and_the_host_waits_for_nothing(worker):
    array = worker.on_gpu(3.0)
    handle = worker.client.push_pull(W, array, array)
    worker.await_push()
    worker.answer(7.0)
    handle.wait()
    assert (array.values == 3.0).all()  # the copy is still under way
    assert (in_stream(worker, array) == 7.0).all()


def test_a_result_for_the_host_is_there_when_wait_returns(gpu_worker):
    out = np.zeros(NUM_ELEMENTS, np.float32)
    handle = gpu_worker.client.push_pull(W, np.full(NUM_ELEMENTS, 3.0, np.float32), out)
    gpu_worker.await_push()
    assert (gpu_worker.region == 3.0).all()
    gpu_worker.answer(7.0)
    assert (handle.wait() == 7.0).all()


def test_the_next_push_waits_until_the_last_result_has_been_read(worker):
    first = worker.on_gpu(1.0)
    handle = worker.client.push_pull(W, first, first)
    worker.await_push()
    worker.answer(10.0)
    handle.wait()  # the copy to `first` has not begun
    with worker.gpus.using(0, worker.gpus.pointer_of(worker.gpus.stream(0))):  # which knows nothing of that copy
        second = worker.on_gpu(2.0)
        worker.client.push_pull(W, second, second)
    worker.await_push()
    assert (worker.region == 2.0).all()
    assert (in_stream(worker, first) == 10.0).all()


def test_a_push_that_is_not_waited_for_lets_the_user_s_stream_overwrite_its_array(worker):
    array = worker.on_gpu(4.0)
    worker.client.push(W, array)
    worker.gpus.current_stream(0).arrays.zero(array)
    assert not in_stream(worker, array).any()
    worker.await_push()
    assert (worker.region == 4.0).all()


def test_an_array_in_the_region_is_pushed_once_the_user_s_stream_has_written_it(gpu_worker, monkeypatch):
    array = gpu_worker.client.device_array(W)
    held = Held(monkeypatch)
    gpu_worker.gpus.current_stream(0).arrays.copy(array, np.full(NUM_ELEMENTS, 5.0, np.float32))
    gpu_worker.client.push_pull(W, None, array)
    assert not gpu_worker.has_pushed()
    held.let_go()
    gpu_worker.await_push()
    assert (gpu_worker.region == 5.0).all()


def test_a_region_on_the_host_is_pinned_once_and_unpinned_at_the_end(host_worker):
    array = host_worker.on_gpu(1.0)
    for value in (1.0, 2.0):
        handle = host_worker.client.push_pull(W, array, array)
        host_worker.await_push()
        assert host_worker.gpus.num_pinned == 1
        host_worker.answer(value)
        handle.wait()
    host_worker.client.copies.close()
    assert host_worker.gpus.num_pinned == 0


def test_copies_for_sharded_models_have_ended_when_memory_is_unpinned(host_worker):
    copies, user = host_worker.client.copies, host_worker.gpus.current_stream(0)
    kept, stored = host_worker.memory.view(8192, 4096), host_worker.memory.view(16384, 4096)
    kept[:] = 3
    fetched, pushed = host_worker.gpus.array(np.zeros(4096, np.uint8)), host_worker.gpus.array(np.ones(4096, np.uint8))
    copies.fetch(fetched, kept, user.record())
    copies.store(stored, pushed)
    copies.close()
    assert (fetched.values == 3).all()
    assert (stored == 1).all()
    assert host_worker.gpus.num_pinned == 0


def test_memory_that_may_not_be_pinned_is_copied_with_a_warning(host_worker):
    host_worker.gpus._most_pinned_bytes = 0
    array = host_worker.on_gpu(1.0)
    with pytest.warns(RuntimeWarning, match="rank 0: CUDA refused to pin .*; copies .* hold up backward"):
        host_worker.client.push_pull(W, array, array)
    host_worker.await_push()
    assert (host_worker.region == 1.0).all()


def test_a_gpu_that_fails_ends_the_wait_with_its_error(worker):
    array = worker.on_gpu(1.0)
    worker.gpus.current_stream(0).fail()
    handle = worker.client.push_pull(W, array, array)
    with pytest.raises(GpuError, match="illegal memory access"):
        handle.wait(20.0)
    assert not worker.has_pushed()
    with pytest.raises(GpuError, match="illegal memory access"):
        worker.client.copies.require_working()


def test_a_wait_that_stalls_leaves_nothing_that_writes_to_its_array(worker):
    array = worker.on_gpu(1.0)
    handle = worker.client.push_pull(W, array, array)
    worker.await_push()
    with pytest.raises(StallError):
        handle.wait(0.05)
    worker.answer(9.0)
    handle.wait()
    assert (in_stream(worker, array) == 9.0).all()


def test_a_call_that_stalled_goes_on_with_the_same_values_alone(gpu_worker):
    client, values = gpu_worker.client, np.full(NUM_ELEMENTS, 1.0, np.float32)
    array, out = gpu_worker.on_gpu(1.0), gpu_worker.on_gpu(0.0)
    handle = client.push_pull_again(W, array, out)
    gpu_worker.await_push()
    with pytest.raises(StallError):
        handle.wait(0.05)
    gpu_worker.answer(6.0)
    again = client.push_pull_again(W, gpu_worker.gpus.array(values), out)
    again.wait()
    assert not gpu_worker.has_pushed()
    assert (in_stream(gpu_worker, out) == 6.0).all()


def test_all_that_was_pushed_has_left_before_the_worker_says_that_it_leaves(worker):
    array = worker.on_gpu(1.0)
    worker.client.push_pull(W, array, array)
    worker.client.leave()
    kinds = [type(record) for record in worker.device.records()]
    assert kinds.index(Push) < kinds.index(Leave)


def test_a_forgotten_region_is_read_no_more(worker):
    array = worker.on_gpu(1.0)
    handle = worker.client.push_pull(W, array, array)
    worker.await_push()
    worker.answer(8.0)
    handle.wait()
    worker.client.deregister("w")
    worker.region[:] = 0.0  # another key's, from now on
    assert (in_stream(worker, array) == 8.0).all()
