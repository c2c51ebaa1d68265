"""A worker's place as torchrun tells it."""

import pytest

from coarse.transport.adoption import LAUNCHERS, TorchrunWorker

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


def test_placeholders_of_two_jobs_and_of_two_starts_have_names_of_their_own():
    addresses = set()
    for change in ({}, {"LOCAL_RANK": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "2"}):
        worker = TorchrunWorker.of({**TOLD, **change})
        assert worker is not None
        addresses.add(worker.placeholder_address())
    assert len(addresses) == 4
