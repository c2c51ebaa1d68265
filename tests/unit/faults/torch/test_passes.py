"""A loop that is broken off behind any batch and gone on with yields and draws what it would have."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.torch.passes import Passes
from coarse.torch.groups.objects import dumps, loads

NUM_EPOCHS = 2


class Drawing(Dataset):
    """Reading a sample draws from all generators; `read` counts."""

    read = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        type(self).read += 1
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


class Stream(IterableDataset):
    """Samples in their order, with noise."""

    def __iter__(self):
        for index in range(10):
            yield index, float(torch.rand(()))


class Positioned:
    """A loader that says itself where it is, as torchdata's does."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LOADERS = {
    "shuffled": lambda: DataLoader(Drawing(), batch_size=2, shuffle=True),
    "with a generator of its own": lambda: DataLoader(Drawing(), batch_size=2, shuffle=True, generator=seeded(3)),
    "with a sampler's generator": lambda: DataLoader(
        Drawing(), batch_size=2, sampler=RandomSampler(Drawing(), generator=seeded(4))
    ),
    "distributed": lambda: DataLoader(Drawing(), batch_size=1, sampler=DistributedSampler(Drawing(), 2, 0)),
    "by two workers": lambda: DataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=2),
    "a stream": lambda: DataLoader(Stream(), batch_size=2),
    "a list": lambda: [1, 2, 3],
    "a range": lambda: range(4),
    "one that knows its place": Positioned,
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Stop(Exception):
    """The process is killed."""


def train(loader, passes: Passes, seen: list[object], stop_behind: int | None) -> None:
    """Two epochs, with draws in the loop and between epochs; killed behind the commit of so many batches."""
    for epoch in passes.epochs(NUM_EPOCHS):
        if isinstance(getattr(loader, "sampler", None), DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in passes.batches(loader):
            seen.append((epoch, passes.batch, str(batch), float(torch.rand(()))))
            if len(seen) == stop_behind:
                raise Stop(passes.take())
        random.random()
        torch.rand(3)


@pytest.mark.parametrize("name", LOADERS)
def test_a_loop_goes_on_behind_any_batch(name):
    seed_all(1)
    whole: list[object] = []
    train(LOADERS[name](), Passes(print, is_kept=True), whole, None)
    assert len(whole) > 5
    every = 3 if name == "by two workers" else 1
    for stop_behind in range(1, len(whole) + 1, every):
        seed_all(1)
        passes, seen = Passes(print, is_kept=True), []
        with pytest.raises(Stop) as stopped:
            train(LOADERS[name](), passes, seen, stop_behind)
        kept = loads(dumps(stopped.value.args[0], "the position"))
        seed_all(99)  # another process
        again = Passes(print, is_kept=True)
        again.put(kept)
        train(LOADERS[name](), again, seen, None)
        assert seen == whole, stop_behind
        seed_all(1)


def test_batches_by_indices_are_passed_over_and_not_read():
    seed_all(1)
    passes = Passes(print, is_kept=True)
    for _ in passes.batches(LOADERS["shuffled"]()):
        if passes.batch == 3:
            break_off = passes.take()
    Drawing.read = 0
    again = Passes(print, is_kept=True)
    again.put(break_off)
    assert len(list(again.batches(LOADERS["shuffled"]()))) == 1
    assert Drawing.read == 2


def test_a_commit_between_epochs_ends_the_epoch():
    passes = Passes(print, is_kept=True)
    for epoch in passes.epochs(3):
        list(passes.batches([1, 2]))
        if epoch == 1:
            kept = passes.take()
    again = Passes(print, is_kept=True)
    again.put(kept)
    assert list(again.epochs(3)) == [2]


def test_of_two_passes_in_an_epoch_the_first_is_left_out():
    passes = Passes(print, is_kept=True)
    for _ in passes.epochs(1):
        list(passes.batches("ab"))
        for item in passes.batches("cdef"):
            if item == "d":
                kept = passes.take()
    again, seen = Passes(print, is_kept=True), []
    again.put(kept)
    for _ in again.epochs(1):
        seen += [list(again.batches("ab")), list(again.batches("cdef"))]
    assert seen == [[], ["e", "f"]]


def test_steps_go_on():
    passes = Passes(print, is_kept=True)
    for step in passes.steps(5):
        if step == 2:
            kept = passes.take()
    again = Passes(print, is_kept=True)
    again.put(kept)
    assert list(again.steps(5)) == [3, 4]


def test_what_cannot_be_gone_on_with_is_refused():
    passes = Passes(print, is_kept=True)
    with pytest.raises(ConfigError, match="persistent_workers"):
        list(passes.batches(DataLoader(Drawing(), num_workers=1, persistent_workers=True)))
    for _ in passes.batches([1]):
        inner = passes.batches([2])
        with pytest.raises(ConfigError, match="a pass has begun within another one"):
            list(inner)


def test_a_loader_that_ends_early_is_refused():
    passes = Passes(print, is_kept=True)
    for item in passes.batches([1, 2, 3]):
        if item == 3:
            kept = passes.take()
    again = Passes(print, is_kept=True)
    again.put(kept)
    with pytest.raises(CheckpointError, match=r"3 batches of this pass were used before the commit.*ends after 2"):
        list(again.batches([1, 2]))
