"""A sharded mode of one's own, from one file: it trains with fsdp's bits, and moves what it says."""

from dataclasses import dataclass

import torch

import coarse.torch as ct
from coarse.errors import ConfigError, MismatchError
from coarse.strategy import Gather, Keeps, Sharding, Source, Use
from coarse.torch.fsdp.unit import units_of
from tests.mpi.sharding.mode_claims import Stack, adapted, moved, optimizer_of, train
from tests.support.claims import raises
from tests.support.launch import REPOSITORY

OWN = f"{REPOSITORY / 'experiments' / 'strategies' / 'frozen_on_host.py'}:FrozenOnHost"


@dataclass(frozen=True, kw_only=True)
class Mine(Sharding):
    """Of the script itself: copies in the node's memory, of frozen units alone."""

    of_frozen: bool = True

    def gather(self, use: Use) -> Gather:
        if use.is_trainable and self.of_frozen:
            return Gather(Source.ALL)
        return Gather(Source.HOST) if use.is_clean else Gather(Source.ALL, Keeps.HOST_COPY)


def losses(mode: object, make=adapted, steps: int = 4) -> list[float]:
    model = ct.fully_shard(make(), mode)
    optimizer = optimizer_of(model)
    return [train(model, optimizer, step) for step in range(steps)]


def an_own_mode_trains_with_the_bits_of_fsdp() -> None:
    for make in (Stack, adapted):
        wanted = losses("fsdp", make)
        for mode in (OWN, Mine(), Mine(of_frozen=False)):
            assert losses(mode, make) == wanted, mode


def a_part_that_is_thawed_and_frozen_again_is_kept_as_the_mode_says() -> None:
    found = {}
    for mode in ("fsdp", OWN):
        model = ct.fully_shard(adapted(), mode)
        found[mode] = []
        for step in range(8):
            if step in (2, 4, 6):
                model.blocks[1].base.requires_grad_(step != 4)
            if step == 5:
                model.blocks[0].requires_grad_(False)
            optimizer = optimizer_of(model)
            found[mode].append(train(model, optimizer, step))
    assert found["fsdp"] == found[OWN]


def an_own_mode_moves_what_it_says() -> None:
    """Frozen units cross between nodes once, trained ones once a step."""
    model = ct.fully_shard(adapted(), OWN)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)
    trained = sum(unit.fsdp.trainable_nbytes() for unit in units_of(model))
    found = moved(lambda: train(model, optimizer, 1))
    assert found == {
        "forward gather": trained / 2,
        "backward gather": 0,
        "gradient reduce-scatter": trained / 2,
    }, (found, trained)


@dataclass(frozen=True, kw_only=True)
class Wrong(Sharding):
    """Wants second shards that nothing keeps."""

    def gather(self, use: Use) -> Gather:
        return Gather(Source.NODE)


def what_cannot_be_carried_out_is_refused() -> None:
    with raises(ConfigError, "Wrong.gather(Use(", "second shards where these are kept and clean"):
        ct.fully_shard(Stack(), Wrong())
    with raises(ConfigError, "quantised", "'FrozenOnHost'"):
        ct.fully_shard(Stack(), OWN, quantised=True)
    with raises(ConfigError, "cannot be read"):
        ct.fully_shard(Stack(), "nowhere.py:Mine")
    with raises(ConfigError, "a Strategy is the job's"):
        ct.fully_shard(Stack(), "coarse.strategy:Coarse")
    with raises(MismatchError, "mode Mine", "digest"):
        ct.fully_shard(Stack(), Mine(of_frozen=ct.rank() != 1))
    torch.testing.assert_close(torch.tensor(losses(Mine())), torch.tensor(losses("fsdp")))


CLAIMS = [
    an_own_mode_trains_with_the_bits_of_fsdp,
    a_part_that_is_thawed_and_frozen_again_is_kept_as_the_mode_says,
    an_own_mode_moves_what_it_says,
    what_cannot_be_carried_out_is_refused,
]
