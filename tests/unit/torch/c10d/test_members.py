"""How the ranks of a process group find out which workers they are."""

from datetime import timedelta

import pytest
import torch.distributed as dist

import coarse
from coarse.torch.c10d.members import meet


@pytest.fixture
def store():
    return dist.HashStore()


def test_each_rank_learns_all_workers(store):
    store.set("worker/1", "7")
    assert meet(store, 0, 2, 4, timedelta(seconds=1), "here") == (4, 7)


def test_ranks_that_are_one_worker_are_told_how_to_start(store):
    store.set("worker/1", "0")
    with pytest.raises(coarse.ConfigError, match="not by torchrun"):
        meet(store, 0, 2, 0, timedelta(seconds=1), "here")


def test_ranks_that_do_not_come_are_named(store):
    store.set("worker/2", "2")
    with pytest.raises(coarse.StallError, match=r"here: ranks \[1, 3\] have not come") as stalled:
        meet(store, 0, 4, 0, timedelta(milliseconds=10), "here")
    assert stalled.value.missing == (1, 3)
