"""Which way buckets go, and when, with devices and workers that only note what comes."""

from types import SimpleNamespace

import numpy as np
import pytest

from coarse.errors import InFlightError, StallError
from coarse.parallel.data import dual
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.strategy.rounds import first_to_devices

WORKERS = 3


class Line:
    """Devices, stream and client at once."""

    timer = None
    dual_sync = None

    def __init__(self, split, *, hold_back=True):
        self.split, self.hold_back = split, hold_back
        self.events = []
        self.counted = []
        self.num_present = WORKERS
        self.stalls = 0
        self.restarts = 0
        self.protocol = SimpleNamespace(join_round=0)
        self.placement = SimpleNamespace(num_clients=WORKERS)
        self.client_index = 0

    def require_client(self):
        return self

    # the chooser

    def next_round(self, buckets):
        return first_to_devices(self.split, len(buckets), hold_back=self.hold_back)

    def restart(self):
        self.restarts += 1

    # the client

    def host_array(self, descriptor):
        return np.zeros(descriptor.shape, DType(descriptor.dtype).storage)

    def push_pull(self, descriptor, array, out):
        if array is None:
            self.events.append(f"push {descriptor.priority}")
            return self.flight(f"wait {descriptor.priority}")
        assert array.tolist() == [1, 0, 0]
        self.events.append("call")

        def wait():
            if self.stalls:
                self.stalls -= 1
                raise StallError("a worker is late")
            return np.array([worker < self.num_present for worker in range(WORKERS)], np.int64)

        return SimpleNamespace(wait=wait)

    def count_push(self, descriptor):
        self.counted.append(descriptor.name)

    # the stream

    def submit(self, descriptor, array):
        self.events.append(f"sum {descriptor.priority}")
        return self.flight(f"wait for the sum of {descriptor.priority}")

    def flight(self, event):
        return SimpleNamespace(wait=lambda: self.events.append(event))


def reducer_of(line, num_buckets=4):
    made = dual.DualReducer(line, line, line, "")
    for index in range(num_buckets):
        made.memory_of(Descriptor(f"bucket {index}", int(DType.FLOAT32), int(Op.SUM), (3,), index))
    made.begin_round()
    return made


@pytest.fixture
def line():
    return Line(split=2)


def test_the_first_buckets_are_pushed_at_once_and_the_rest_is_summed_in_order_at_the_end(line):
    reducer = reducer_of(line)
    flights = {index: reducer.start(index) for index in (0, 3, 1, 2)}
    with pytest.raises(InFlightError, match="bucket 3 sets out when all"):
        flights[3].wait()
    assert line.events == ["call", "push 0", "push 1"]
    reducer.all_started()
    reducer.all_started()
    assert line.events[3:] == ["sum 2", "sum 3"]
    for index in range(4):
        flights[index].wait()
    assert line.events[5:] == ["wait 0", "wait 1", "wait for the sum of 2", "wait for the sum of 3"]
    assert line.counted == ["bucket 2", "bucket 3"]  # the client itself counts what it pushes


def test_before_the_first_border_all_buckets_go_to_the_devices(line):
    made = dual.DualReducer(line, line, line, "")
    made.memory_of(Descriptor("bucket", int(DType.FLOAT32), int(Op.SUM), (3,), 0))
    made.start(0)
    made.all_started()
    assert line.events == ["push 0"]


@pytest.mark.parametrize("split", range(5))
def test_the_roll_is_called_once_a_round_and_only_where_the_workers_sum_a_part(split):
    line = Line(split)
    reducer = reducer_of(line)
    for _ in range(2):
        for index in range(4):
            reducer.start(index)
        reducer.all_started()
        reducer.begin_round()
    assert line.events.count("call") == (0 if split == 4 else 2)
    assert sum(event.startswith("push") for event in line.events) == 2 * split


def test_where_a_worker_has_joined_all_buckets_go_to_the_devices(line):
    line.num_present = WORKERS - 1
    reducer = reducer_of(line)
    flights = [reducer.start(index) for index in range(4)]
    reducer.all_started()
    flights[3].wait()
    assert line.events == ["call", "push 0", "push 1", "push 2", "push 3", "wait 3"]


def test_a_bucket_that_is_held_back_can_be_recalled_and_one_that_was_pushed_cannot(line):
    reducer = reducer_of(line)
    for index in range(4):
        reducer.start(index)
    assert [reducer.cancel(index) for index in range(4)] == [False, False, True, True]
    reducer.start(3)
    reducer.all_started()
    assert line.events[-1] == "sum 3"
    assert not reducer.cancel(3)
    assert "sum 2" not in line.events


def test_a_stalled_roll_call_is_waited_for_again_and_nothing_set_out_before(line):
    reducer = reducer_of(line)
    for index in range(4):
        reducer.start(index)
    line.stalls = 2
    for _ in range(2):
        with pytest.raises(StallError):
            reducer.all_started()
        assert line.events == ["call", "push 0", "push 1"]
    reducer.all_started()
    assert line.events[3:] == ["sum 2", "sum 3"]


def test_a_bucket_that_is_started_once_more_is_summed_once_more_without_another_call(line):
    reducer = reducer_of(line)
    for index in range(4):
        reducer.start(index)
    reducer.all_started()
    reducer.start(3)
    reducer.all_started()
    assert line.events[3:] == ["sum 2", "sum 3", "sum 3"]


def test_a_split_changes_at_a_border_alone(line):
    reducer = reducer_of(line)
    reducer.start(0)
    line.split = 0
    reducer.start(1)
    reducer.begin_round()
    reducer.start(0)
    assert line.events == ["call", "push 0", "push 1", "call"]


def test_once_all_workers_have_joined_the_devices_take_all_until_the_next_border(line):
    reducer = reducer_of(line)
    line.protocol.join_round = 1
    for index in range(4):
        reducer.start(index)
    assert line.events == ["push 0", "push 1", "push 2", "push 3"]
    assert line.restarts == 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1), (2, 3, 1, 0)])
def test_what_is_not_held_back_is_summed_as_it_comes_in_one_order_everywhere(order):
    line = Line(split=1, hold_back=False)
    reducer = reducer_of(line)
    flights = {index: reducer.start(index) for index in order}
    assert [event for event in line.events if event.startswith("sum")] == ["sum 1", "sum 2", "sum 3"]
    assert line.events.index("sum 1") > line.events.index("call")
    reducer.all_started()
    for index in order:
        flights[index].wait()
    reducer.start(2)
    reducer.all_started()
    assert line.events[-1] == "sum 2"


def test_what_is_not_held_back_waits_in_backward_for_its_turn_alone():
    line = Line(split=0, hold_back=False)
    reducer = reducer_of(line, 3)
    reducer.start(0)
    reducer.start(2)
    assert line.events == ["call", "sum 0"]
    reducer.start(1)
    assert line.events[2:] == ["sum 1", "sum 2"]


def test_where_a_worker_has_joined_buckets_that_are_not_held_back_go_to_the_devices_too():
    line = Line(split=0, hold_back=False)
    line.num_present = WORKERS - 1
    reducer = reducer_of(line, 2)
    for index in range(2):
        reducer.start(index)
    reducer.all_started()
    assert line.events == ["call", "push 0", "push 1"]
