"""Where a unit is gathered from, in every mode and state."""

import itertools

import numpy as np
import pytest

from coarse.errors import ConfigError
from coarse.parallel.sharded.passes import ChangeWatch, Mark
from coarse.parallel.sharded.unit_cache import AcceleratorCache, UnitCache
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import LIVE, SHARDINGS, Gather, Keeps, Source
from tests.support.launch import REPOSITORY

FROZEN_ON_HOST = f"{REPOSITORY / 'experiments' / 'strategies' / 'frozen_on_host.py'}:FrozenOnHost"
EVENTS = ("change", "forward", "backward")


def gathers_of(mode, events):
    cache, found = UnitCache(SHARDINGS[mode]()), []
    for event in events:
        if event == "change":
            cache.on_changed()
        else:
            found.append(cache.on_gather(in_backward=event == "backward"))
    return found


@pytest.mark.parametrize(("mode", "source"), [("fsdp", Source.ALL), ("hybrid", Source.NODE)])
def test_zero_3_always_gathers_from_all_workers_that_share_it(mode, source):
    for events in itertools.product(EVENTS, repeat=4):
        assert set(gathers_of(mode, events)) <= {Gather(source)}


@pytest.mark.parametrize(("mode", "keeps"), [("zeropp", Keeps.SECOND_SHARDS), ("fcdp", Keeps.HOST_COPY)])
def test_nothing_is_taken_from_what_was_kept_before_the_last_change(mode, keeps):
    for events in itertools.product(EVENTS, repeat=6):
        cache, is_kept = UnitCache(SHARDINGS[mode]()), False
        for event in events:
            if event == "change":
                cache.on_changed()
                is_kept = False
                continue
            found = cache.on_gather(in_backward=event == "backward")
            assert is_kept or found == Gather(Source.ALL, keeps)
            is_kept = True


def test_fcdp_gathers_from_all_workers_once_for_each_change():
    for events in itertools.product(EVENTS, repeat=6):
        bursts = [list(run) for is_change, run in itertools.groupby(events, lambda e: e == "change") if not is_change]
        assert gathers_of("fcdp", events).count(Gather(Source.ALL, Keeps.HOST_COPY)) == len(bursts)


def test_a_copy_of_another_kind_counts_as_none():
    """A unit that was trained and is frozen now, and the other way round."""
    mode = sharding_named(FROZEN_ON_HOST, LIVE)
    for is_trainable, first, other in (
        (True, Keeps.SECOND_SHARDS, Keeps.HOST_COPY), (False, Keeps.HOST_COPY, Keeps.SECOND_SHARDS)
    ):  # fmt: skip
        cache = UnitCache(mode)
        assert cache.on_gather(in_backward=False, is_trainable=is_trainable) == Gather(Source.ALL, first)
        assert cache.on_gather(in_backward=True, is_trainable=not is_trainable) == Gather(Source.ALL, other)
        again = cache.on_gather(in_backward=True, is_trainable=not is_trainable)
        assert again.source in (Source.HOST, Source.NODE)


def test_zeropp_gathers_every_forward_from_all_workers_and_no_backward_after_one():
    steps, first = ("change", "forward", "backward") * 3, Gather(Source.ALL, Keeps.SECOND_SHARDS)
    assert gathers_of("zeropp", steps) == [first, Gather(Source.NODE)] * 3
    assert gathers_of("zeropp", ("forward", "forward")) == [first] * 2


def test_a_unit_has_changed_where_any_part_of_its_mark_has():
    watch = ChangeWatch()
    first = [Mark((1, 2), 3), Mark((4,), 5)]
    assert watch.look(first).tolist() == [1, 1]
    assert watch.look(first).tolist() == [0, 0]
    assert watch.look([Mark((1, 3), 3), Mark((4,), 5)]).tolist() == [1, 0]
    assert watch.look([Mark((1, 3), 3), Mark((4,), 6)]).tolist() == [0, 1]
    assert watch.look(first).dtype == np.uint8


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan"), float("inf"), "1", True, None])
def test_tau_is_a_fraction(tau):
    with pytest.raises(ConfigError, match=r"tau.*\[0, 1\]"):
        AcceleratorCache(tau=tau)


def test_a_unit_stays_on_the_accelerator_below_tau_alone():
    cache = AcceleratorCache(tau=0.5)
    assert [cache.keeps(used, 100) for used in (0, 49, 50, 100)] == [True, True, False, False]
    assert not AcceleratorCache(tau=0).keeps(0, 100)


def test_as_few_of_the_oldest_are_dropped_as_free_what_is_lacking():
    cache = AcceleratorCache()
    for kept in itertools.product((1, 3, 5), repeat=4):
        for lacking in range(25):
            dropped = cache.num_dropped(kept, lacking)
            enough = sum(kept[:dropped]) >= lacking
            assert enough or dropped == len(kept)
            assert dropped == 0 or sum(kept[: dropped - 1]) < lacking
