"""A device in emulated time: steps of a feature in their order, each once its time is over, beside the kernel's."""

from collections import deque
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from coarse.emulation import device as emulated
from coarse.emulation.device import EmulatedDevice
from coarse.emulation.envelope import FabricPort
from coarse.errors import UnsupportedError
from coarse.protocol.costs import FREE, Cost, Way
from coarse.proxy.instructions import Reserve, Send


class Adds(NamedTuple):
    """Adds bytes, some of which lie on device 1."""

    nbytes: int
    fetched: int = 0


class Sends(NamedTuple):
    nbytes: int


class Done(NamedTuple):
    name: str


class Writes(NamedTuple):
    nbytes: int


class Unknown(NamedTuple):
    pass


COSTS = {
    Adds: lambda one, _: Cost(Way.ADDS, one.nbytes, fetched=((1, one.fetched),) if one.fetched else ()),
    Sends: lambda one, _: Cost(Way.SENDS, one.nbytes),
    Done: lambda one, _: FREE,
    Writes: lambda one, _: Cost(Way.WRITES, one.nbytes),
}


class Box:
    """Keeps what is spent until the test lets it pass."""

    def __init__(self):
        self.spent = deque()
        self.now_s = 0.0

    def at_s(self):
        return self.now_s

    def spend(self, way, nbytes, source, target, then, *, at_s=None):
        self.spent.append((way, nbytes, source, target, then))

    def let_pass(self):
        way, nbytes, source, target, then = self.spent.popleft()
        self.now_s += 1.0
        then(self.now_s)
        return way, nbytes, source, target


class Made:
    """A device, its box, and what it has done in order."""

    def __init__(self, monkeypatch):
        self.box, self.done = Box(), []
        self.executor = SimpleNamespace(context="first")
        monkeypatch.setattr(emulated, "costs_of", lambda name: COSTS)
        driver = SimpleNamespace(
            send=self.note, send_chunk=None, reduce=None, reserve=lambda reserve: "", finish=lambda: None
        )
        protocol = SimpleNamespace(device=0, on_reserved=lambda request, refusal: [])
        self.device = EmulatedDevice(protocol, driver, None, self.box, self)
        carriers = {kind: self.note for kind in (Adds, Sends, Writes, Unknown)} | {Done: self.follow}
        machine = SimpleNamespace(sizes=lambda step: None)
        self.device.add_feature("mine", machine, self.executor, carriers)

    def note(self, step):
        self.done.append((step, self.executor.context))

    def follow(self, done):
        self.note(done)
        if done.name == "more":
            self.device.carry_out_of("mine", [Done("at once"), Adds(7)])

    @contextmanager
    def charging(self, nbytes):
        self.done.append(nbytes)
        yield


@pytest.fixture
def made(monkeypatch):
    return Made(monkeypatch)


def test_steps_wait_for_those_before_and_find_the_state_of_their_event(made):
    made.device.carry_out_of("mine", [Done("a"), Adds(10, fetched=4), Send(0, Done("b")), Sends(20)])
    made.executor.context = "second"
    made.device.carry_out_of("mine", [Done("c")])
    assert made.done == [(Done("a"), "first")]
    assert made.box.let_pass() == (FabricPort.FETCH, 4, 1, 0)
    assert made.box.let_pass() == (FabricPort.ADDER, 10, 0, 0)
    assert made.done[1:] == [
        (Adds(10, 4), "first"), (Send(0, Done("b")), "first"), 20, (Sends(20), "first"), (Done("c"), "second"),
    ]  # fmt: skip


def test_what_follows_from_a_step_comes_before_the_others(made):
    made.device.carry_out_of("mine", [Done("more"), Done("last")])
    assert [step for step, _ in made.done] == [Done("more"), Done("at once")]
    assert made.box.let_pass() == (FabricPort.ADDER, 7, 0, 0)
    assert [step for step, _ in made.done[2:]] == [Adds(7), Done("last")]


def test_what_a_feature_answers_to_the_kernel_waits_its_turn_too(made):
    made.device.carry_out_of("mine", [Adds(10)])
    made.device.carry_out([Done("a worker has left")])
    made.device.carry_out([Send(0, Done("of the kernel"))])
    assert [step for step, _ in made.done] == [Send(0, Done("of the kernel"))]
    made.box.let_pass()
    assert [step for step, _ in made.done[1:]] == [Adds(10), Done("a worker has left")]


def test_room_may_be_asked_for_and_what_has_no_time_is_refused_by_name(made):
    made.device.carry_out_of("mine", [Reserve(1, 0, 64)])
    with pytest.raises(UnsupportedError, match="Writes of the feature 'mine' writes 5 bytes"):
        made.device.carry_out_of("mine", [Writes(5)])
    with pytest.raises(UnsupportedError, match="no cost is stated of Unknown"):
        made.device.carry_out_of("mine", [Unknown()])
