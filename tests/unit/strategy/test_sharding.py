"""Sharded modes as objects: what is refused, what is kept, and one of a user's own by its name."""

from dataclasses import dataclass

import pytest

from coarse.errors import ConfigError
from coarse.strategy import Gather, Keeps, Sharding, Source, States, Use
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import (
    LIVE,
    SHARDINGS,
    SIMULATED,
    Fcdp,
    Fsdp,
    ZeroPP,
    keeps_any,
    keeps_of,
    name_of,
    require_sharding,
    reuses_in_forward,
)
from tests.support.launch import REPOSITORY

OWN = f"{REPOSITORY / 'experiments' / 'strategies' / 'frozen_on_host.py'}:FrozenOnHost"
ALL = Gather(Source.ALL)


def test_coarses_own_can_be_carried_out_and_are_known_by_their_names():
    for name, kind in SHARDINGS.items():
        assert name_of(require_sharding(kind(), name)) == str(kind()) == name
    assert [sharding_named(name, LIVE) for name in LIVE] == [SHARDINGS[name]() for name in LIVE]
    for wrong in ("FSDP", "", None, 3, "zero2"):
        with pytest.raises(ConfigError, match="'fsdp', 'hybrid', 'zeropp', 'fcdp', 'odc', MODULE:CLASS"):
            sharding_named(wrong, LIVE)
    with pytest.raises(ConfigError, match="got 'odc'"):
        sharding_named("odc", SIMULATED)


def test_what_is_kept_and_reused_follows_from_the_gathers():
    kept = {name: keeps_of(kind(), is_trainable=True) for name, kind in SHARDINGS.items()}
    assert {name for name, keeps in kept.items() if keeps is not Keeps.NOTHING} == {"zeropp", "fcdp"}
    assert kept["zeropp"] is Keeps.SECOND_SHARDS
    assert [reuses_in_forward(mode) for mode in (Fcdp(), Fcdp(comm=False), ZeroPP(), Fsdp())] == [True, *[False] * 3]


def test_one_of_a_users_own_is_made_with_its_options():
    mode = sharding_named(OWN, LIVE, options={"quantised": True})
    assert name_of(mode) == "FrozenOnHost"
    assert mode.gather(Use()) == Gather(Source.ALL, Keeps.SECOND_SHARDS, 8)
    kept = [keeps_of(mode, is_trainable=is_trainable) for is_trainable in (True, False)]
    assert kept == [Keeps.SECOND_SHARDS, Keeps.HOST_COPY]
    assert keeps_any(mode, Keeps.HOST_COPY)
    assert not keeps_any(Fsdp(), Keeps.HOST_COPY, Keeps.SECOND_SHARDS)
    with pytest.raises(ConfigError, match=r"has no option 'quantized'; .* did you mean 'quantised'"):
        sharding_named(OWN, LIVE, options={"quantized": True})


def sharding(function, *, states=States.SHARDED, mesh_dims=1):
    found, dims = states, mesh_dims

    @dataclass(frozen=True, kw_only=True)
    class Mine(Sharding):
        states = found
        mesh_dims = dims

        def gather(self, use):
            return function(use)

    return Mine()


SECOND, HOST = Gather(Source.ALL, Keeps.SECOND_SHARDS), Gather(Source.ALL, Keeps.HOST_COPY)


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (sharding(lambda _: "all"), "a Gather of a Source and Keeps is wanted"),
        (sharding(lambda _: Gather("all")), "a Gather of a Source and Keeps is wanted"),
        (sharding(lambda _: 1 / 0), "Mine.gather raised ZeroDivisionError"),
        (sharding(lambda _: Gather(Source.NODE)), "second shards where these are kept and clean"),
        (sharding(lambda use: Gather(Source.NODE) if use.in_backward else SECOND, states=States.SECONDARY), "clean"),
        (sharding(lambda _: Gather(Source.HOST)), "the node's memory has a copy where one is kept"),
        (sharding(lambda use: Gather(Source.HOST) if use.is_clean else SECOND, states=States.SECONDARY), "has a copy"),
        (sharding(lambda use: HOST if use.in_backward else SECOND), "one kind of copy is kept"),
        (sharding(lambda use: Gather(Source.HOST, Keeps.HOST_COPY) if use.is_clean else HOST), "what was gathered"),
        (sharding(lambda _: SECOND), "set states = States.SECONDARY"),
        (sharding(lambda _: Gather(Source.HELD)), "HELD is for states that are REPLICATED"),
        (sharding(lambda _: ALL, states=States.REPLICATED), "HELD is for states that are REPLICATED"),
        (sharding(lambda _: ALL, mesh_dims=2), "gather from Source.NODE"),
        (sharding(lambda _: ALL, mesh_dims=3), "mesh_dims is 1 or 2, got 3"),
        (sharding(lambda _: Gather(Source.ALL, bits=4)), "bits are 16 or 8, got 4"),
        (sharding(lambda _: Gather(Source.ALL, Keeps.HOST_COPY, 8)), "int8 is gathered from all workers"),
        (Use(), "is no coarse.strategy.Sharding"),
    ],
)
def test_a_gather_that_cannot_be_made_is_refused_in_a_sentence(mine, said):
    with pytest.raises(ConfigError, match=said):
        require_sharding(mine, "mine.py:Mine")
