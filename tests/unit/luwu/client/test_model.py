"""A worker's end of a model in the network, as records come to it one after another."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from coarse.luwu.client import model as module
from coarse.luwu.records import PagedBeat, PagedData, PagedOpened
from coarse.luwu.store.declaration import staging_slot_bytes
from coarse.luwu.store.operations import GRADIENTS, Push
from tests.unit.luwu.device.test_served import declared

MODEL, DEVICE, HUB = 0, 1, 0
FROM_HUB = {
    "hub": HUB, "gradients": 0, "gradient_bytes": 4096, "staging": 4096, "num_staging": 1, "look": 8192,
    "push_window": 8, "up_elements": 64, "down_elements": 64, "ring": [16384, 8, 256],
}  # fmt: skip
FROM_ROOT = {"told": "its folders", "resumed": None}


class ScriptedLink:
    """Brings records, all that are left at once."""

    def __init__(self) -> None:
        self.protocol = SimpleNamespace(client=0, local_proxy=HUB, models={})
        self.lock = threading.RLock()
        self.stall_timeout_s = 1.0
        self.script: list[object] = []

    def tell(self, records: object) -> None:
        pass

    send = tell

    def ring_bells(self) -> None:
        pass

    tell_waiting = ring_bells

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        for record in self.script:
            self.protocol.models[MODEL](record)
        self.script.clear()
        return is_done()


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> tuple[module.RemoteModel, ScriptedLink]:
    """A model whose bytes no thread carries, and its link."""
    monkeypatch.setattr(module.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    link = ScriptedLink()
    return module.RemoteModel(MODEL, link, {}), link  # type: ignore[arg-type]


def said(text: dict[str, object]) -> PagedOpened:
    return PagedOpened(0, DEVICE, MODEL, True, json.dumps(text))


def test_what_others_have_pulled_may_come_before_all_of_the_opening_has(remote):
    """The device of this host answers before it brings anything, but the optimizer node's answer takes its own way."""
    model, link = remote
    came = PagedData(0, DEVICE, MODEL, False, 0, 3, 2, False)
    link.script = [said(FROM_HUB), came, said(FROM_ROOT)]
    model.open(replace(declared(2), nodes=(DEVICE,)))
    assert not model.has_copies
    model.pull(0, np.zeros(576 * 4, np.uint8))
    assert model.has_copies


def test_the_node_is_told_of_packets_once_they_are_copied(remote):
    model, link = remote
    link.script = [said(FROM_HUB), said(FROM_ROOT)]
    model.open(replace(declared(2), nodes=(DEVICE,)))
    model.pull(0, np.zeros(576 * 4, np.uint8))
    (line,) = model._lines.values()
    line.out.clear()
    line.on_data(PagedData(0, DEVICE, MODEL, False, 0, 2, 1, False))
    assert not line.out
    while line.copies:
        line.on_copied(line.copies.popleft())
    assert {(type(said), said.is_up) for said in line.out} == {(PagedBeat, False)}
    assert {said.ack for said in line.out} == {2}


def test_what_is_pulled_comes_through_the_ring_in_as_many_turns_as_it_takes(remote):
    """Nine packets through a ring of eight: the node is told of each that was copied, and then brings the others."""
    model, link = remote
    memory = np.zeros(1 << 15, np.uint8)
    model._memories = {HUB: SimpleNamespace(view=lambda offset, nbytes: memory[offset : offset + nbytes])}
    link.script = [said(FROM_HUB), said(FROM_ROOT)]
    model.open(replace(declared(2), nodes=(DEVICE,)))
    (line,) = model._lines.values()
    target, came = np.zeros(576 * 4, np.uint8), np.arange(576 * 4).astype(np.uint8)
    pulled = model.pull(0, target)
    ring, slots, packet_bytes = FROM_HUB["ring"]
    for begin, end in ((0, 8), (8, 9)):
        for packet in range(begin, end):
            at = ring + packet % slots * packet_bytes
            memory[at : at + packet_bytes] = came[packet * packet_bytes :][:packet_bytes]
        line.on_data(PagedData(0, DEVICE, MODEL, False, begin, end, end - 1, False))
        assert not pulled.is_done
        model._copy_all()
        assert target[: end * packet_bytes].tolist() == came[: end * packet_bytes].tolist()
    assert pulled.is_done


def test_chunks_are_staged_in_the_slots_in_turn(remote):
    """The node reads them so: chunk after chunk, the first slot again once what it held was added."""
    model, link = remote
    link.script = [said({**FROM_HUB, "num_staging": 3}), said(FROM_ROOT)]
    model.open(replace(declared(2), nodes=(DEVICE,)))
    (line,) = model._lines.values()
    line.push(Push(0, GRADIENTS, True), 1, source=np.zeros(576, np.float32))
    slots = []
    for _ in range(5):
        copy = line.copies.popleft()
        slots.append((copy.offset - FROM_HUB["staging"]) / staging_slot_bytes(model.declaration))
        line.on_copied(copy)
        line.on_beat(PagedBeat(0, DEVICE, MODEL, True, copy.end, copy.end + 8, copy.end, -1))
    assert slots == [0, 1, 2, 0, 1]
    assert not line.copies
