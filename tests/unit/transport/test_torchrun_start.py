"""A worker's place as torchrun tells it."""

import os
import socket

import pytest

from coarse.errors import ConfigError, UnsupportedError
from coarse.protocol.config import Launch
from coarse.transport import torchrun_start
from coarse.transport.torchrun_start import TorchrunWorker, become_rank

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


def test_workers_that_may_be_alone_start_mpi_as_nobodys_rank(monkeypatch):
    for name in ("PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("OMPI_MCA_BTL", "self")
    become_rank(told(1), None, Launch(alone=True), 1.0)
    assert not {"PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK"} & os.environ.keys()
    assert os.environ["OMPI_MCA_BTL"] == "self"


def test_several_workers_without_devices_are_told_how_to_have_them_or_to_be_alone():
    with pytest.raises(ConfigError, match=r"rank 1: 4 workers were started without mpirun[^$]* say alone = true"):
        become_rank(told(1), None, Launch(), 1.0)


def test_a_worker_that_has_become_a_rank_starts_nothing_again(monkeypatch):
    with socket.socket() as placeholder:
        monkeypatch.setattr(torchrun_start, "_goodbye", placeholder)
        become_rank(told(1), "3:1", Launch(), 1.0)


def test_placeholders_of_two_jobs_and_of_two_starts_have_names_of_their_own():
    addresses = set()
    for change in ({}, {"LOCAL_RANK": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "2"}):
        worker = TorchrunWorker.of({**TOLD, **change})
        assert worker is not None
        addresses.add(worker.placeholder_address())
    assert len(addresses) == 4
