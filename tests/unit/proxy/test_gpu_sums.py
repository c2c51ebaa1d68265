"""A memory device's sums on a GPU: started at once, over once their events are, in order, and to numpy's bits."""

import numpy as np
import pytest

from coarse.errors import GpuError
from coarse.protocol.dtypes import DType, Op
from coarse.proxy.gpu_sums import MOST_UNDER_WAY, GpuSums
from coarse.proxy.instructions import Reduce, Region, RingId, RingReduce
from coarse.storage.reduce import reduce, reduce_local
from tests.support.gpu_stand_in import StandInArray, StandInGpus, StandInStream

RING = RingId(1, 1, 0, 0)
NBYTES = 4096


class Node:
    """Two devices' memory, that of device 1 on GPU 1, as device 0 reaches it from GPU 0."""

    def __init__(self, *, reaches: bool = True) -> None:
        self.gpus = StandInGpus(2, strangers=[] if reaches else [(0, 1)])
        seen_from = [0, 0 if reaches else 1]
        self.memories = [StandInArray(np.zeros(NBYTES, np.uint8), gpu) for gpu in seen_from]
        self.sums = GpuSums(self.gpus, 0, self.place, lambda device: device == 0 or reaches)
        self.done: list[str] = []

    def place(self, region: Region, dtype: DType, num_elements: int):
        end = region.offset + num_elements * dtype.itemsize
        return self.memories[region.device][region.offset : end].view(dtype.storage)

    def fill(self, region: Region, values: np.ndarray) -> None:
        self.memories[region.device].values[region.offset : region.offset + values.nbytes] = values.view(np.uint8)

    def values(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        return self.place(region, dtype, num_elements).values.copy()

    def say(self, word: str):
        return lambda *_: self.done.append(word)

    def finish(self) -> int:
        """Go on until nothing is under way; how often it was asked in vain."""
        num_vain = 0
        while self.sums.is_busy:
            num_vain += not self.sums.go_on()
        return num_vain


def work(sources, targets, num_elements=4, dtype=DType.FLOAT32, op=Op.SUM, divisor=1) -> Reduce:
    return Reduce(7, 1, 0, 1, int(dtype), int(op), divisor, num_elements, tuple(sources), tuple(targets), 0)


HERE, THERE = Region(0, 0), Region(1, 512)


@pytest.mark.parametrize("reaches", [True, False])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT64])
@pytest.mark.parametrize(("op", "divisor"), [(Op.SUM, 1), (Op.AVERAGE, 3), (Op.MAX, 1)])
def test_a_sum_over_two_devices_has_the_bits_of_numpy(reaches, dtype, op, divisor):
    node = Node(reaches=reaches)
    divisor = 1 if dtype.is_integer else divisor
    values = [np.random.default_rng(seed).integers(0, 200, 50).astype(dtype.storage) for seed in range(2)]
    wanted = [np.empty_like(values[0])]
    reduce(values, wanted, dtype, op, divisor)
    for region, contribution in zip((HERE, THERE), values, strict=True):
        node.fill(region, contribution)
    node.sums.reduce(work([HERE, THERE], [THERE, HERE], 50, dtype, op, divisor), node.say("done"))
    node.finish()
    for region in (HERE, THERE):
        assert (node.values(region, dtype, 50) == wanted[0]).all()
    assert node.done == ["done"]
    assert (node.sums.staged_bytes == 0) is reaches


def test_nothing_is_said_before_the_gpu_is_through():
    node = Node()
    node.fill(HERE, np.ones(4, np.float32))
    node.fill(THERE, np.ones(4, np.float32))
    node.sums.reduce(work([HERE, THERE], [HERE]), node.say("done"))
    assert node.values(HERE, DType.FLOAT32, 4).tolist() == [1, 1, 1, 1]
    assert node.sums.is_busy
    assert not node.sums.go_on()  # returns at once, whatever the GPU does
    assert not node.done
    assert node.sums.go_on()
    assert node.done == ["done"]
    assert node.values(HERE, DType.FLOAT32, 4).tolist() == [2, 2, 2, 2]


def test_few_are_under_way_so_that_an_urgent_one_waits_for_few():
    node = Node()
    for number in range(MOST_UNDER_WAY):
        assert node.sums.has_room
        node.sums.reduce(work([HERE], [THERE]), node.say(str(number)))
    assert not node.sums.has_room
    node.finish()
    assert node.sums.has_room
    assert node.done == ["0", "1"]


def test_where_nobody_contributed_a_result_is_zero():
    node = Node(reaches=False)
    node.fill(THERE, np.ones(4, np.float32))
    node.sums.reduce(work([], [HERE, THERE]), node.say("done"))
    node.finish()
    assert not node.values(THERE, DType.FLOAT32, 4).any()


@pytest.mark.parametrize("reaches", [True, False])
@pytest.mark.parametrize("num_sources", [0, 1, 2])
def test_a_ring_s_local_sum_comes_to_the_host_in_the_accumulator_type(reaches, num_sources):
    node, sources = Node(reaches=reaches), (HERE, THERE)[:num_sources]
    values = [np.random.default_rng(seed).normal(size=20).astype(np.float16) for seed in range(num_sources)]
    for region, contribution in zip(sources, values, strict=True):
        node.fill(region, contribution)
    wanted = reduce_local(values, 20, DType.FLOAT16, Op.SUM)
    found: list[np.ndarray] = []
    ring = RingReduce(RING, int(DType.FLOAT16), int(Op.SUM), 20, sources, 0)
    node.sums.combine(ring, found.append)
    assert not found
    node.finish()
    assert found[0].dtype == np.float32
    assert (found[0] == wanted).all()


def test_what_is_said_after_a_ring_s_result_waits_for_it_and_keeps_its_order():
    node = Node()
    node.sums.after(node.say("before"))
    assert node.done == ["before"]  # nothing is being written
    node.sums.write(np.full(4, 5, np.float32), DType.FLOAT32, [HERE, THERE])
    node.sums.after(node.say("first"))
    node.sums.after(node.say("second"))
    assert node.done == ["before"]
    assert node.finish() > 0
    assert node.done == ["before", "first", "second"]
    assert node.values(THERE, DType.FLOAT32, 4).tolist() == [5, 5, 5, 5]
    node.sums.after(node.say("third"))
    assert node.done[-1] == "third"


def test_what_a_sum_says_comes_after_what_was_held_back_before():
    node = Node()
    node.sums.write(np.zeros(4, np.float32), DType.FLOAT32, [HERE])
    node.sums.after(node.say("held"))
    node.sums.reduce(work([HERE], [THERE]), lambda: node.sums.after(node.say("of the sum")))
    node.finish()
    assert node.done == ["held", "of the sum"]


def test_a_gpu_that_fails_is_an_error_and_no_endless_wait(monkeypatch):
    node = Node()
    made: list[StandInStream] = []
    monkeypatch.setattr(node.gpus, "stream", lambda gpu: made.append(StandInStream(node.gpus, gpu)) or made[-1])
    sums = GpuSums(node.gpus, 0, node.place, lambda device: True)
    made[0].fail()
    sums.reduce(work([HERE, THERE], [HERE]), node.say("done"))
    with pytest.raises(GpuError, match="illegal memory access"):
        sums.go_on()
    assert not node.done


def test_buffers_of_sums_that_are_over_are_used_again():
    node = Node(reaches=False)
    for _ in range(3):
        node.sums.reduce(work([HERE, THERE], [THERE]), node.say("done"))
        node.finish()
        left = node.gpus.free_bytes(0)
    node.sums.reduce(work([HERE, THERE], [THERE]), node.say("done"))
    node.finish()
    assert node.gpus.free_bytes(0) == left
