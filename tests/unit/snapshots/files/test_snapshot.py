"""A snapshot holds the values at its beginning, whatever overwrites them meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import SnapshotError
from coarse.snapshots.files.snapshot import (
    CopyNow,
    Discard,
    Grant,
    Refuse,
    SnapshotMachine,
    SnapshotPhase,
    WriteFile,
)


def test_without_requests_keys_are_copied_one_at_a_time_and_then_written():
    machine = SnapshotMachine()
    assert machine.on_begin(1, [10, 11]) == [CopyNow(1, 10)]
    assert machine.on_copied(1, 10) == [CopyNow(1, 11)]
    assert machine.on_copied(1, 11) == [WriteFile(1, (10, 11))]
    assert (machine.phase, machine.active_id) == (SnapshotPhase.WRITING, 1)
    assert machine.on_written(1) == []
    assert (machine.phase, machine.active_id) == (SnapshotPhase.IDLE, None)


def test_a_key_that_is_not_copied_yet_is_copied_before_it_is_overwritten():
    machine = SnapshotMachine()
    machine.on_begin(1, [10, 11, 12])
    assert machine.on_overwrite_request(5, [12, 11]) == [CopyNow(1, 12), CopyNow(1, 11)]
    assert machine.on_copied(1, 11) == []
    assert machine.on_copied(1, 12) == [Grant(5, (12, 11))]
    assert machine.on_copied(1, 10) == [WriteFile(1, (10, 11, 12))]


def test_a_request_waits_for_the_background_copy_of_its_key_and_asks_for_no_second_one():
    machine = SnapshotMachine()
    machine.on_begin(1, [10])
    assert machine.on_overwrite_request(5, [10]) == []
    assert machine.on_overwrite_request(6, [10, 10]) == []
    assert machine.on_copied(1, 10) == [Grant(5, (10,)), Grant(6, (10, 10)), WriteFile(1, (10,))]


@pytest.mark.parametrize("keys", [[10], [99], []])
def test_copied_and_unknown_keys_are_granted_at_once(keys):
    machine = SnapshotMachine()
    assert machine.on_overwrite_request(5, keys) == [Grant(5, tuple(keys))]
    machine.on_begin(1, [10, 11])
    machine.on_copied(1, 10)
    assert machine.on_overwrite_request(5, keys) == [Grant(5, tuple(keys))]
    machine.on_copied(1, 11)
    assert machine.on_overwrite_request(5, [10, 11]) == [Grant(5, (10, 11))]


def test_a_snapshot_of_nothing_is_written_at_once():
    assert SnapshotMachine().on_begin(1, []) == [WriteFile(1, ())]


def test_a_second_snapshot_is_refused_with_what_the_first_is_doing():
    machine = SnapshotMachine()
    machine.on_begin(1, [10, 11])
    (refusal,) = machine.on_begin(2, [10])
    assert isinstance(refusal, Refuse)
    assert "snapshot 1 is still copying its keys (2 of 2 left)" in refusal.reason
    machine.on_copied(1, 10)
    machine.on_copied(1, 11)
    (refusal,) = machine.on_begin(2, [10])
    assert "still writing its file; wait()" in refusal.reason
    machine.on_written(1)
    assert machine.on_begin(2, [10]) == [CopyNow(2, 10)]


def test_a_number_is_not_used_twice():
    machine = SnapshotMachine()
    machine.on_begin(3, [])
    machine.on_written(3)
    (refusal,) = machine.on_begin(3, [])
    assert refusal == Refuse(3, refusal.reason)
    assert "must be above 3" in refusal.reason


def test_giving_up_lets_every_waiter_go_and_forgets_late_copies():
    machine = SnapshotMachine()
    machine.on_begin(1, [10, 11])
    machine.on_overwrite_request(5, [11])
    assert machine.on_abort(1, "disk full") == [Grant(5, (11,)), Discard(1, "disk full")]
    assert machine.on_copied(1, 10) == machine.on_written(1) == machine.on_abort(1, "again") == []
    assert machine.on_begin(2, [10, 11]) == [CopyNow(2, 10)]
    assert machine.on_copied(1, 10) == []
    assert machine.num_uncopied == 2


def test_a_copy_that_nobody_asked_for_is_an_error():
    machine = SnapshotMachine()
    machine.on_begin(1, [10, 11])
    with pytest.raises(SnapshotError, match="copy of key 11 ended that was not under way"):
        machine.on_copied(1, 11)


def test_a_file_cannot_be_written_before_the_last_copy():
    machine = SnapshotMachine()
    machine.on_begin(1, [10])
    with pytest.raises(SnapshotError, match="wait for WriteFile"):
        machine.on_written(1)


class Device:
    """Keys with values, copies that take their time, and requesters that write once granted."""

    def __init__(self, num_keys: int) -> None:
        self.machine = SnapshotMachine()
        self.values = {key: (key, 0) for key in range(num_keys)}
        self.copying: list[CopyNow] = []
        self.copies: dict[int, tuple[int, int]] = {}
        self.granted: list[Grant] = []
        self.waiting: dict[int, tuple[int, ...]] = {}
        self.files: list[WriteFile] = []

    def carry_out(self, instructions) -> None:
        for instruction in instructions:
            if isinstance(instruction, CopyNow):
                assert instruction.key not in self.copies
                assert instruction not in self.copying
                self.copying.append(instruction)
            elif isinstance(instruction, Grant):
                assert self.waiting.pop(instruction.requester) == instruction.keys
                self.granted.append(instruction)
            else:
                assert isinstance(instruction, WriteFile)
                assert not self.copying
                self.files.append(instruction)

    def request(self, requester: int, keys: tuple[int, ...]) -> None:
        self.waiting[requester] = keys
        self.carry_out(self.machine.on_overwrite_request(requester, keys))

    def overwrite_granted(self, index: int, value: int) -> None:
        for key in self.granted[index].keys:
            self.values[key] = (key, value)

    def finish_copy(self, index: int) -> None:
        copied = self.copying.pop(index)
        self.copies[copied.key] = self.values[copied.key]
        self.carry_out(self.machine.on_copied(copied.snapshot_id, copied.key))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.lists(st.integers(0, 7), max_size=4)),
        st.tuples(st.just("copied"), st.integers(0, 99)),
        st.tuples(st.just("overwrite"), st.integers(0, 99)),
    ),
    max_size=60,
)


@given(num_keys=st.integers(0, 6), events=EVENTS)
def test_under_any_interleaving_the_snapshot_holds_the_values_at_its_beginning(num_keys, events):
    device = Device(num_keys)
    at_begin = dict(device.values)
    device.carry_out(device.machine.on_begin(1, list(at_begin)))
    for number, (event, detail) in enumerate(events, start=1):
        if event == "request":
            device.request(number, tuple(detail))
        elif event == "copied" and device.copying:
            device.finish_copy(detail % len(device.copying))
        elif event == "overwrite" and device.granted:
            device.overwrite_granted(detail % len(device.granted), number)
        assert device.copying or device.files, "the background copy never rests"
        assert device.machine.num_uncopied >= len(device.copying)
    while device.copying:
        device.finish_copy(0)
    assert device.copies == at_begin
    assert device.waiting == {}, "every request is granted"
    assert device.files == [WriteFile(1, tuple(at_begin))]


@given(num_keys=st.integers(1, 6), events=EVENTS)
def test_without_requests_under_way_one_key_is_copied_at_a_time(num_keys, events):
    device = Device(num_keys)
    device.carry_out(device.machine.on_begin(1, range(num_keys)))
    for number, (event, detail) in enumerate(events, start=1):
        if event == "request":
            device.request(number, tuple(detail))
        elif device.copying:
            device.finish_copy(detail % len(device.copying))
        wanted = {key for keys in device.waiting.values() for key in keys}
        background = [copy for copy in device.copying if copy.key not in wanted]
        assert len(background) <= 1
