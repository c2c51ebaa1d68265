"""A worker's place as torchrun tells it."""

import pytest

from coarse.errors import ConfigError, UnsupportedError
from coarse.protocol.config import Launch
from coarse.transport.adoption import LAUNCHERS, TorchrunWorker, become_rank

TOLD = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


def test_a_worker_finds_its_place():
    worker = TorchrunWorker.of(TOLD)
    assert worker is not None
    assert (worker.rank, worker.size, worker.local_rank, worker.local_size) == (3, 4, 1, 2)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_whom_mpi_has_started_is_no_worker_of_torchruns(name):
    assert TorchrunWorker.of({**TOLD, name: "0"}) is None


@pytest.mark.parametrize("change", [{"RANK": ""}, {"WORLD_SIZE": "many"}])
def test_an_incomplete_place_is_none(change):
    assert TorchrunWorker.of({**TOLD, **change}) is None


def told(rank: int, *, size: int = 4, local_size: int = 2) -> TorchrunWorker:
    worker = TorchrunWorker.of(TOLD | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(local_size)})
    assert worker is not None
    return worker


@pytest.mark.parametrize("hosts", [None, ("a",), ("a", "b", "c")])
def test_several_nodes_need_as_many_hosts(hosts):
    with pytest.raises(ConfigError, match=r"workers on 2 nodes, and \[launch\] hosts names"):
        become_rank(told(1), None, Launch(devices=1, hosts=hosts), 1.0)


def test_nodes_with_different_numbers_of_workers_are_refused():
    with pytest.raises(UnsupportedError, match="give all the same --nproc-per-node"):
        become_rank(told(1, size=3), None, Launch(devices=1, hosts=("a", "b")), 1.0)


def test_placeholders_of_two_jobs_and_of_two_starts_have_names_of_their_own():
    addresses = set()
    for change in ({}, {"LOCAL_RANK": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "2"}):
        worker = TorchrunWorker.of({**TOLD, **change})
        assert worker is not None
        addresses.add(worker.placeholder_address())
    assert len(addresses) == 4
