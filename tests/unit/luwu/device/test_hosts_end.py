"""Trees of hosts whose model cannot begin, or is given up: all are told, and nothing is left on any device."""

from itertools import chain, islice

import pytest

from tests.support.claims import takes_all
from tests.unit.luwu.device.hosts import CAPACITY_BYTES, Hosts
from tests.unit.luwu.device.test_hosts import TREES, made

SEEDS = range(12 if takes_all() else 4)
NUM_DEVICES = 5


def failing(seed: int, patch: pytest.MonkeyPatch, loss: float = 0.1) -> Hosts:
    hosts = made(seed, patch, switches=TREES["a switch"], loss=loss)
    hosts.may_fail = True
    return hosts


def require_failed(hosts: Hosts, text: str) -> None:
    """All workers hear why, and close."""
    hosts.run([hosts.until_failed(worker, hosts.whole(worker, 2)) for worker in hosts.workers])
    assert all(text in hosts.failed[worker] for worker in hosts.workers)
    hosts.end()


@pytest.mark.parametrize("device", range(4))
def test_a_device_that_has_no_links_fails_the_model_for_all(device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        hosts = failing(seed, monkeypatch)
        hosts.devices[device].links._send_message = None
        require_failed(hosts, f"memory device {device}: models in the network go from host to host by live links alone")


@pytest.mark.parametrize("device", range(3))
def test_a_switch_that_is_full_fails_the_model_for_all(device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        hosts = failing(seed, monkeypatch)
        taken = hosts.devices[device].allocator.allocate(CAPACITY_BYTES - 4096)
        hosts.run([hosts.until_failed(worker, hosts.whole(worker, 2)) for worker in hosts.workers])
        assert all(f"memory device {device}: it is full" in hosts.failed[worker] for worker in hosts.workers)
        hosts.devices[device].allocator.free(taken)
        hosts.end()


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_model_that_a_worker_gives_up_ends_for_all(loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        hosts = failing(seed, monkeypatch, loss)
        tired = seed % 3
        programs = [hosts.until_failed(worker, hosts.whole(worker, 2)) for worker in hosts.workers]
        programs[tired] = chain(islice(hosts.whole(tired, 2), 2 + seed), hosts.closing(tired, "it is tired"))
        hosts.run(programs)
        assert all(f"rank {tired} gave the model up: it is tired" in hosts.failed[worker] for worker in hosts.workers)
        hosts.end()
