"""Ranks that draw the same minibatches without asking one another."""

import itertools

import numpy as np
import pytest

from coarse.errors import ConfigError
from coarse.parallel.packing.sampler import BALANCES, MinibatchSampler, Sampling

LENGTHS = np.random.default_rng(0).lognormal(5, 1, 100).astype(int) + 1
CAP = 4 * int(LENGTHS.max())


def drawn(sampling: Sampling, epoch: int = 0) -> list[list]:
    """By rank, all minibatches of an epoch."""
    found = []
    for rank in range(sampling.num_ranks):
        sampler = MinibatchSampler(LENGTHS, sampling, rank)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler)
    return found


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_together_have_each_sample_once(balance: str, drop_last: bool) -> None:
    sampling = Sampling(minibatch=16, num_ranks=4, balance=balance, cap=CAP, drop_last=drop_last)
    by_rank = drawn(sampling)
    samples = [sample for of_rank in by_rank for one in of_rank for sample in itertools.chain(*one.microbatches)]
    assert len(set(samples)) == len(samples) == (96 if drop_last else 100)
    for parts in zip(*by_rank, strict=True):
        assert {part.total_tokens for part in parts} == {sum(part.num_tokens for part in parts)}
        for part in parts:
            assert part.num_tokens == sum(LENGTHS[sample] for sample in itertools.chain(*part.microbatches))


def test_epochs_differ_and_come_back() -> None:
    sampling = Sampling(minibatch=16, num_ranks=2, cap=CAP)
    assert drawn(sampling, 0) == drawn(sampling, 0) != drawn(sampling, 1)
    plain = Sampling(minibatch=16, num_ranks=2, cap=CAP, shuffle=False)
    assert drawn(plain, 0) == drawn(plain, 1)


def test_it_goes_on_amid_an_epoch() -> None:
    sampling = Sampling(minibatch=8, num_ranks=2, cap=CAP)
    whole = MinibatchSampler(LENGTHS, sampling, 1)
    whole.set_epoch(3)
    sampler = iter(whole)
    first = [next(sampler) for _ in range(5)]
    again = MinibatchSampler(LENGTHS, sampling, 1)
    again.load_state_dict(whole.state_dict())
    assert first + list(again) == drawn(sampling, 3)[1]


def test_a_script_that_sets_the_epoch_of_a_loaded_state_goes_on_amid_it() -> None:
    sampling = Sampling(minibatch=8, num_ranks=2, cap=CAP)
    epochs = [drawn(sampling, epoch)[1] for epoch in (3, 4)]
    for state, epoch, wanted in (
        ({"epoch": 3, "num_done": 5}, 3, epochs[0][5:]),
        ({"epoch": 3, "num_done": len(epochs[0])}, 3, []),
        ({"epoch": 3, "num_done": 5}, 4, epochs[1]),
    ):
        sampler = MinibatchSampler(LENGTHS, sampling, 1)
        sampler.load_state_dict(state)
        sampler.set_epoch(epoch)
        assert sampler.state_dict() == (state if epoch == 3 else {"epoch": 4, "num_done": 0})
        assert list(sampler) == wanted
        sampler.set_epoch(4)
        assert list(sampler) == epochs[1]


def test_an_epoch_that_a_script_left_and_sets_again_begins_anew() -> None:
    sampling = Sampling(minibatch=8, num_ranks=2, cap=CAP)
    sampler = MinibatchSampler(LENGTHS, sampling, 1)
    sampler.load_state_dict({"epoch": 3, "num_done": 2})
    next(iter(sampler))
    sampler.set_epoch(3)
    assert list(sampler) == drawn(sampling, 3)[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"minibatch": 0}, "minibatch must be at least 1"),
        ({"num_ranks": 0}, "num_ranks must be at least 1"),
        ({"balance": "best"}, "balance must be one of"),
        ({"cap": None}, "cap must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Sampling(**{"minibatch": 8, "num_ranks": 2, "cap": 100, **options})
    with pytest.raises(ConfigError, match=r"rank must lie in 0\.\.1"):
        MinibatchSampler(LENGTHS, Sampling(minibatch=8, num_ranks=2, cap=CAP), 2)
