"""Buckets behind wires, and sums that come late, with reducers that only note what comes."""

import numpy as np
import pytest

from coarse.errors import InFlightError, StallError
from coarse.parallel.data import sent
from coarse.parallel.data.sent import LateReducer, WiredReducer
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.strategy import Coarse, Feedback, TopK


class Line:
    """A reducer whose sums are what was given, times a factor; they land when they are waited for."""

    takes_gpus = True
    timer = dual_sync = None

    def __init__(self, name="", events=None, factor=2):
        self.factor = factor
        self.name, self.events, self.stalls, self.cancels = name, [] if events is None else events, 0, True
        self.memories, self.names = [], []

    @property
    def rounds(self):
        return self

    def memory_of(self, descriptor, num_exact=0):
        self.names.append(descriptor.name)
        self.memories.append(np.zeros(descriptor.shape, DType(descriptor.dtype).storage))
        return self.memories[-1]

    def start(self, index):
        self.events.append(f"{self.name}start {index}")
        line, has_landed = self, []

        class Flight:
            def wait(self):
                if line.stalls:
                    line.stalls -= 1
                    raise StallError("late")
                if not has_landed:
                    has_landed.append(True)
                    line.memories[index] *= line.factor
                    line.events.append(f"{line.name}land {index}")

        return Flight()

    def cancel(self, index):
        return self.cancels

    def all_started(self):
        self.events.append(f"{self.name}all started")

    def begin_round(self):
        if self.stalls:
            self.stalls -= 1
            raise StallError("late")
        self.events.append(f"{self.name}begin")

    def drop(self):
        self.events.append(f"{self.name}drop")

    def close(self):
        self.events.append(f"{self.name}close")


def descriptor(index, size=3):
    return Descriptor(f"bucket {index}", int(DType.FLOAT32), int(Op.SUM), (size,), index)


@pytest.fixture
def late(monkeypatch):
    """Two buckets whose sums are two rounds late, and one that must be exact; its lines and their events."""
    monkeypatch.setattr(sent, "is_initialized", lambda: True)
    events = []
    lines = [Line(f"{name} ", events) for name in "abc"]
    reducer = LateReducer(lines)
    memories = [reducer.memory_of(descriptor(0)), reducer.memory_of(descriptor(1)), reducer.memory_of(descriptor(2), 3)]
    return reducer, lines, memories, events


def a_round(reducer, memories, value):
    """Each bucket's first element after one more round that gives a value."""
    flights = []
    for index, memory in enumerate(memories):
        memory[:] = value
        flights.append(reducer.start(index))
    reducer.rounds.all_started()
    for flight in flights:
        flight.wait()
    reducer.rounds.begin_round()
    return [memory.tolist()[0] for memory in memories]


def test_sums_come_two_rounds_late_and_exact_ones_at_once(late):
    reducer, lines, memories, events = late
    found = [a_round(reducer, memories, value) for value in (1, 10, 100, 1000)]
    assert found == [[0, 0, 2], [0, 0, 20], [2, 2, 200], [20, 20, 2000]]
    assert lines[1].names == ["bucket 0/late 1", "bucket 1/late 1", "bucket 2/late 1"]
    assert lines[0].names[0] == "bucket 0"
    assert [each for each in events if "start 0" in each] == ["a start 0", "b start 0", "c start 0", "a start 0"]
    assert [each for each in events if "begin" in each] == ["a begin", "b begin"]  # before they are started again
    assert events.index("a land 0") > events.index("c start 0")


def test_a_wait_that_stalled_goes_on(late):
    reducer, lines, memories, _ = late
    a_round(reducer, memories, 1)
    a_round(reducer, memories, 2)
    for index, memory in enumerate(memories):
        memory[:] = 3
        flight = reducer.start(index)
        lines[0].stalls = 1
        if index < 2:
            with pytest.raises(StallError):
                flight.wait()
            assert memory.tolist() == [3, 3, 3]
        lines[0].stalls = 0
        flight.wait()
        flight.wait()
    assert [memory.tolist()[0] for memory in memories] == [2, 2, 6]
    lines[0].stalls = 1
    with pytest.raises(StallError):
        reducer.begin_round()
    reducer.begin_round()
    assert a_round(reducer, memories, 4)[0] == 4


def test_a_second_gradient_of_a_step_is_refused_unless_the_first_was_taken_back(late):
    reducer, lines, *_ = late
    reducer.start(0)
    with pytest.raises(InFlightError, match="count all backward passes"):
        reducer.start(0)
    lines[0].cancels = False
    assert not reducer.cancel(0)
    lines[0].cancels = True
    assert reducer.cancel(0)
    reducer.start(0)


def test_what_is_under_way_lands_before_memory_is_given_back(late):
    reducer, lines, memories, events = late
    a_round(reducer, memories, 1)
    reducer.drop()
    assert events.index("a land 1") < events.index("a drop")
    assert [each for each in events if "drop" in each] == ["a drop", "b drop", "c drop"]
    again = [reducer.memory_of(descriptor(0)), reducer.memory_of(descriptor(1))]
    for line in lines:
        line.memories = line.memories[-2:]
    assert a_round(reducer, again, 5) == [0, 0]
    reducer.close()


class Wired(Coarse):
    def wire(self, tensor):
        return Feedback(inner=TopK(share=0.34)) if tensor.num_elements == 3 else None


def test_values_stay_and_what_travels_is_another_bucket():
    line = Line(factor=1)
    reducer = WiredReducer(line, Wired(), 0, 2)
    assert not reducer.takes_gpus
    small, plain = reducer.memory_of(descriptor(0, 5), 2), reducer.memory_of(descriptor(1, 4))
    assert len(line.memories[0]) == 2 * (1 + 2) + 2
    assert line.memories[1] is plain
    small[:] = [1, 5, 2, 1, 1]
    flight = reducer.start(0)
    assert small.tolist() == [1, 5, 2, 1, 1]
    flight.wait()
    assert small.tolist() == [0, 5, 0, 1, 1]
    line.factor, line.memories[1][:] = 2, 1
    reducer.start(1).wait()
    assert plain.tolist() == [2, 2, 2, 2]


def test_a_push_that_is_taken_back_feeds_nothing_back():
    line = Line()
    reducer = WiredReducer(line, Wired(), 0, 1)
    memory = reducer.memory_of(descriptor(0))
    memory[:] = [4, 3, 0]
    reducer.start(0)
    first = line.memories[0].copy()
    assert reducer.cancel(0)
    reducer.start(0)
    assert np.array_equal(first, line.memories[0])
    line.cancels = False
    assert not reducer.cancel(0)
    reducer.start(0)
    assert not np.array_equal(first, line.memories[0])
    reducer.drop()
    reducer.close()
    assert line.events[-2:] == ["drop", "close"]
