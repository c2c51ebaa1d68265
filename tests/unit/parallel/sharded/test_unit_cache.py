"""Where a unit is gathered from, in every mode and state."""

import itertools

import numpy as np
import pytest

from coarse.errors import ConfigError
from coarse.parallel.sharded.accelerator_cache import AcceleratorCache
from coarse.parallel.sharded.changes import ChangeWatch, Mark
from coarse.parallel.sharded.modes import ShardedMode, mode_named, rules_of
from coarse.parallel.sharded.unit_cache import Source, UnitCache

EVENTS = ("change", "forward", "backward")


def sources(mode: ShardedMode, events: tuple[str, ...]) -> list[Source]:
    cache, found = UnitCache(rules_of(mode)), []
    for event in events:
        if event == "change":
            cache.on_changed()
        else:
            found.append(cache.on_gather(in_backward=event == "backward"))
    return found


@pytest.mark.parametrize("mode", [ShardedMode.FSDP, ShardedMode.HYBRID])
def test_zero_3_always_gathers_from_all_workers(mode):
    for events in itertools.product(EVENTS, repeat=4):
        assert set(sources(mode, events)) <= {Source.ALL_WORKERS}


@pytest.mark.parametrize("mode", [ShardedMode.ZEROPP, ShardedMode.FCDP])
def test_nothing_is_taken_from_what_was_kept_before_the_last_change(mode):
    for events in itertools.product(EVENTS, repeat=6):
        cache, is_kept = UnitCache(rules_of(mode)), False
        for event in events:
            if event == "change":
                cache.on_changed()
                is_kept = False
                continue
            source = cache.on_gather(in_backward=event == "backward")
            assert is_kept or source is Source.ALL_WORKERS_KEEPING
            is_kept = True


def test_fcdp_gathers_from_all_workers_once_for_each_change():
    for events in itertools.product(EVENTS, repeat=6):
        bursts = [list(run) for is_change, run in itertools.groupby(events, lambda e: e == "change") if not is_change]
        assert sources(ShardedMode.FCDP, events).count(Source.ALL_WORKERS_KEEPING) == len(bursts)


def test_zeropp_gathers_every_forward_from_all_workers_and_no_backward_after_one():
    steps = ("change", "forward", "backward") * 3
    assert sources(ShardedMode.ZEROPP, steps) == [Source.ALL_WORKERS_KEEPING, Source.SECONDARY_SHARDS] * 3
    assert sources(ShardedMode.ZEROPP, ("forward", "forward")) == [Source.ALL_WORKERS_KEEPING] * 2


def test_a_mode_is_known_by_its_name_and_another_is_refused_with_all_names():
    assert [mode_named(str(mode)) for mode in ShardedMode] == list(ShardedMode)
    for wrong in ("FSDP", "", None, 3):
        with pytest.raises(ConfigError, match="'fsdp', 'hybrid', 'zeropp', 'fcdp'"):
            mode_named(wrong)


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
