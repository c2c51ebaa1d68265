"""Live profiling on a machine whose speed is known: what noise does to tables, and what real differences do."""

from collections.abc import Callable

import numpy as np
import pytest

from coarse.client.profiler import measured_facts
from coarse.errors import CapacityError
from coarse.gpu.available import gpus, use
from coarse.gpu.interface import is_on_gpu
from coarse.protocol.config import FixedRouting, MeasuredRouting
from coarse.protocol.plan import Cluster
from coarse.strategy.builtin import Coarse
from tests.support.gpu_stand_in import StandInGpus

LOCAL, REMOTE = 0, 1
CLUSTER = Cluster(worker_nodes=(0,), device_nodes=(0, 0), local_devices=(LOCAL,))
Speed = Callable[[int, int], float]
"""(device, how many times it was measured before) -> seconds of anything that is measured."""


class FakeMachine:
    """A client, its link and a clock; each measurement asks the clock twice."""

    def __init__(self, seconds: Speed) -> None:
        self._seconds = seconds
        self._visits = {LOCAL: -1, REMOTE: -1}
        self._device = LOCAL
        self._now_s, self._is_begun = 0.0, False
        self.protocol = self.link = self.copies = self
        self.client = 0
        self.gpu: int | None = None
        self.memory: StandInGpus | None = None
        """Where regions are, if on a GPU."""
        self.copied: list[tuple[bool, bool]] = []
        """Of each copy by a GPU, whether its region is pinned or on a GPU, and so its payload."""
        self.freed: list[int] = []

    def allocate(self, device: int, nbytes: int, *, is_of_key: bool) -> tuple[int, np.ndarray]:
        assert is_of_key
        self._device = device
        self._visits[device] += 1
        if self.memory is not None:
            return device, self.memory.empty(0, (nbytes,), np.dtype(np.uint8))
        return device, np.empty(nbytes, np.uint8)

    def pin(self, region: np.ndarray) -> None:
        if not gpus().is_pinned(region):
            gpus().pin(region)

    def now(self, region: object, payload: object) -> None:
        self.copied.append(tuple(is_on_gpu(one) or gpus().is_pinned(one) for one in (region, payload)))

    def free(self, device: int, offset: int) -> None:
        self.freed.append(device)

    def next_token(self) -> int:
        return 1

    def ask(self, *_: object) -> None:
        pass

    def now_s(self) -> float:
        if self._is_begun:
            self._now_s += self._seconds(self._device, self._visits[self._device])
        self._is_begun = not self._is_begun
        return self._now_s


def chosen(seconds: Speed, routing: MeasuredRouting | FixedRouting | None = None):
    machine = FakeMachine(seconds)
    table = measured_facts(machine, Coarse(routing=routing or MeasuredRouting()), CLUSTER, machine)
    return table, machine


@pytest.fixture
def stand_in():
    found = StandInGpus(1)
    use(found)
    yield found
    use(None)


def measured_on(machine: FakeMachine) -> set[tuple[bool, bool]]:
    measured_facts(machine, Coarse(), CLUSTER, machine)
    return set(machine.copied)


def test_copies_to_a_gpu_are_measured_from_pinned_memory(stand_in):
    machine = FakeMachine(lambda device, visit: 1e-3)
    machine.memory = stand_in
    assert measured_on(machine) == {(True, True)}


def test_a_worker_that_pushes_from_a_gpu_measures_copies_from_there_to_pinned_memory(stand_in):
    machine = FakeMachine(lambda device, visit: 1e-3)
    machine.gpu = 0
    assert measured_on(machine) == {(True, True)}


def test_where_its_gpu_has_no_room_a_worker_measures_from_the_host(stand_in, monkeypatch):
    def full(*_: object) -> None:
        raise CapacityError("no room")

    monkeypatch.setattr(stand_in, "empty", full)
    machine = FakeMachine(lambda device, visit: 1e-3)
    machine.gpu = 0
    assert measured_on(machine) == set()
    assert machine.freed == [LOCAL, REMOTE]


def test_equal_proxies_are_measured_once_and_all_goes_to_the_local_one():
    table, machine = chosen(lambda device, visit: 1e-3)
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (LOCAL, LOCAL, 0)
    assert machine.freed == [LOCAL, REMOTE]


@pytest.mark.parametrize("disturbed_rounds", [1, 2, 3])
def test_a_remote_proxy_that_was_only_disturbed_less_is_not_taken(disturbed_rounds):
    table, _ = chosen(lambda device, visit: 2e-3 if device == LOCAL and visit < disturbed_rounds else 1e-3)
    assert (table.latency_proxy, table.bandwidth_proxy) == (LOCAL, LOCAL)


def test_a_remote_proxy_that_is_faster_each_time_is_taken():
    table, _ = chosen(lambda device, visit: 2e-3 if device == LOCAL else 1e-3)
    assert (table.latency_proxy, table.bandwidth_proxy) == (REMOTE, REMOTE)


def test_a_stated_table_is_taken_without_measuring():
    stated = FixedRouting(threshold_bytes=7, partition_bytes=8, bandwidth_proxy=REMOTE)
    table, machine = chosen(lambda device, visit: pytest.fail("measured"), stated)
    assert table == (7, LOCAL, REMOTE, 8)
    assert machine.freed == []
