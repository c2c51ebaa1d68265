"""The plans by which FSDP may shard: F, what is freed, accumulation, units, memory, and the search among them."""

from dataclasses import replace

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.models import Precision, uniform
from coarse.hardware.presets import load_preset
from coarse.hardware.sharded_memory import ShardedTraining, UnitMemory, sharded_account
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.search import Prefetch, ShardedPlan, plans_of, search_plans
from coarse.simulation.sharded.units import joined
from coarse.strategy.sharding import Fcdp, Fsdp, Hybrid, States, ZeroPP, factors_of
from tests.unit.simulation.sharded_jobs import cluster, simulated, spans, units

MIB = 1 << 20


def scenario(**settings):
    return ShardedScenario(**{
        "machine": replace(load_preset("fcdp-a40-10gbe"), num_nodes=2), "model_name": "6x512x8", "batch": 2,
        "num_nodes": 2, "gpus_per_node": 4, "policy": ShardedPolicy(sharding=Fsdp()), **settings,
    })  # fmt: skip


def test_factors_are_parts_of_a_node_and_whole_nodes():
    assert factors_of(4, 8) == (1, 2, 4, 8, 16, 32)
    assert factors_of(3, 6) == (1, 2, 3, 6, 18)
    assert factors_of(1, 1) == (1,)


@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16])
def test_bytes_follow_the_factor(factor):
    """Of FSDP 3.2.2, by node: what is gathered and reduced in groups, and then summed among replicas."""
    machine, nbytes, num_nodes, per_node = cluster(num_nodes=4, gpus_per_node=4), 1600, 4, 4
    report = simulated(Hybrid(factor=factor), machine, of=units(1, nbytes))
    groups = 16 // factor
    whole_nodes = max(1, factor // per_node)
    gathered = groups * (whole_nodes - 1) * nbytes
    assert report.crossing_nbytes("forward gather") == report.crossing_nbytes("backward gather") == gathered
    summed = report.crossing_nbytes("reduce-scatter") - gathered
    crossing_hops = num_nodes if factor < per_node else 16  # rings of replicas, of a shard each
    num_rings = factor
    if groups == 1:
        assert summed == 0
    elif factor < per_node:
        assert summed == num_rings * crossing_hops * 2 * (groups - 1) * nbytes // factor // groups
    else:
        assert summed == num_rings * groups * 2 * (groups - 1) * nbytes // factor // groups


def test_sharding_over_all_is_fsdp_and_a_factor_that_fits_no_nodes_is_refused():
    machine = cluster(num_nodes=2, gpus_per_node=4)
    assert simulated(Hybrid(factor=8), machine).iteration_s == simulated(Fsdp(), machine).iteration_s
    assert simulated(Hybrid(factor=4), machine).iteration_s == simulated(Hybrid(), machine).iteration_s
    with pytest.raises(ConfigError, match="choose one of 1, 2, 4, 8"):
        scenario(policy=ShardedPolicy(sharding=Hybrid(factor=3))).require_fit()
    with pytest.raises(ConfigError, match="whole number of workers"):
        Hybrid(factor=-1)


def test_units_that_are_not_freed_are_not_gathered_again():
    kept = simulated(Fsdp(), policy={"reshards": False})
    assert [name for name, *_ in spans(kept, "forward gather")] == ["u0", "u1"]
    assert spans(kept, "backward gather") == []
    assert kept.crossing_nbytes() < simulated(Fsdp()).crossing_nbytes()


@pytest.mark.parametrize("schedule", list(Schedule))
def test_accumulation_gathers_in_each_microbatch_and_reduces_in_the_last_or_in_each(schedule):
    once = simulated(Fsdp(), schedule=schedule)
    whole, each = (
        simulated(Fsdp(), schedule=schedule, num_microbatches=3, reduces_each=reduces) for reduces in (False, True)
    )
    for report in (whole, each):
        assert report.crossing_nbytes("forward gather") == 3 * once.crossing_nbytes("forward gather")
        assert report.compute_s == pytest.approx(3 * once.compute_s)
    assert whole.crossing_nbytes("reduce-scatter") == once.crossing_nbytes("reduce-scatter")
    assert each.crossing_nbytes("reduce-scatter") == 3 * once.crossing_nbytes("reduce-scatter")
    assert whole.iteration_s < each.iteration_s


def test_what_is_kept_serves_the_forward_of_the_next_microbatch():
    once, twice = (simulated(Fcdp(), num_microbatches=count) for count in (1, 2))
    assert twice.crossing_nbytes("forward gather") == once.crossing_nbytes("forward gather")  # parameters are the same
    once, twice = (simulated(ZeroPP(), num_microbatches=count) for count in (1, 2))
    assert twice.crossing_nbytes("forward gather") == 2 * once.crossing_nbytes("forward gather")


def test_in_fsdp2s_schedule_a_microbatch_begins_when_the_one_before_has_ended():
    report = simulated(Fsdp(), schedule=Schedule.FSDP2, num_microbatches=2, reduces_each=True)
    second = spans(report, "forward gather")[2]
    assert second[1] >= spans(report, "reduce-scatter")[1][2]


def test_units_of_several_blocks_hold_what_their_blocks_do():
    blocks = scenario().units
    for count, wanted in ((1, 6), (2, 3), (4, 2), (6, 1)):
        found = joined(blocks, count, with_root=True)
        assert sum(not unit.is_of_root for unit in found) == wanted
        for total in ("nbytes", "forward_s", "backward_s"):
            assert sum(getattr(unit, total) for unit in found) == pytest.approx(
                sum(getattr(unit, total) for unit in blocks)
            )
    (whole,) = joined(blocks, 0, with_root=False)
    assert whole.nbytes == sum(unit.nbytes for unit in blocks)
    assert all(unit.is_of_root for unit in joined(blocks, 0, with_root=True))
    with pytest.raises(ConfigError, match="at least 1 block"):
        joined(blocks, -1, with_root=True)


def test_a_model_that_is_one_unit_is_gathered_once():
    for schedule in Schedule:
        report = scenario(blocks_per_unit=0, schedule=schedule).run()
        assert len(spans(report, "forward gather")) == 2  # one chain, of two streams


def test_memory_is_that_of_an_account_of_live_training():
    """An account of FSDP2 on two workers: six blocks of 2 MiB and a root of 0.5 MiB, in float32 without states."""
    block, root = 2 * MIB, MIB // 2
    whole = 6 * block + root
    of = {"largest_bytes": block, "root_bytes": root, "largest_trained_bytes": block, "root_trained_bytes": root}
    for reshards, keeps_gradients, gathered, gradients in (
        (True, False, 2.25 * block, 4.125 * block), (False, False, 5.25 * block, 2.625 * block),
        (True, True, 2.25 * block, 6.75 * block),
    ):  # fmt: skip
        account = scenario_account(whole, reshards=reshards, keeps_gradients=keeps_gradients, **of)
        held = gathered + gradients
        ours = account["gathered units"] + account["gradients"] + account["gradients under way"]
        assert held <= ours <= held + root + block // 4, (reshards, keeps_gradients, ours - held)


def scenario_account(whole, **units):
    training = ShardedTraining(
        model=uniform(1, whole // 4), num_gpus=2, num_nodes=1, held=States.SHARDED, units=UnitMemory(**units),
        precision=Precision.FP32,
    )  # fmt: skip
    return {row.name: row.nbytes for row in sharded_account(training, 1).rows}


def test_sharing_over_fewer_takes_more_memory_and_parameters_that_stay_too():
    held = [scenario(policy=ShardedPolicy(sharding=Hybrid(factor=f))).account().total_bytes for f in (1, 2, 4, 8)]
    assert held == sorted(held, reverse=True)
    kept = scenario(policy=ShardedPolicy(sharding=Fsdp(), reshards=False)).account().total_bytes
    assert kept > held[-1]
    whole, each = (scenario(num_microbatches=4, reduces_each=one).account().total_bytes for one in (False, True))
    assert whole > each == scenario().account().total_bytes


def test_a_search_simulates_each_plan_once_and_ranks_them():
    asked = scenario()
    plans = list(plans_of(asked))
    assert len(set(plans)) == len(plans)
    found = search_plans(asked)
    assert sum(1 + len(each.alike) for each in found.found) + found.num_too_large == len(plans)
    for each in found.found[:3]:
        assert each.plan.of(asked).run().iteration_s == each.report.iteration_s
    best = found.found[0]
    assert all(best.samples_per_s >= each.samples_per_s for each in found.found)
    assert found.ahead == best.samples_per_s / found.found[1].samples_per_s > 1


def test_a_search_takes_the_largest_batch_that_fits_each_plan():
    asked = scenario(memory_bytes=3 << 30)
    found = search_plans(asked, at_largest_batch=True)
    for each in found.found:
        own = each.plan.of(asked)
        assert each.batch == own.largest_batch()
        assert each.memory_bytes <= 3 << 30


def test_a_search_in_which_nothing_fits_says_what_the_smallest_would_need():
    with pytest.raises(CapacityError, match="needs"):
        search_plans(scenario(memory_bytes=1 << 20))


def test_a_slow_network_has_its_nodes_hold_the_model_and_a_fast_one_with_little_room_shards_over_all():
    slow = replace(scenario(), machine=replace(load_preset("fcdp-a40-1gbe"), num_nodes=2))
    best = search_plans(slow).found[0]
    assert 4 in {plan.factor for plan in (best.plan, *best.alike)}
    plan = ShardedPlan(blocks_per_unit=1, factor=8, reshards=True, prefetch=Prefetch.BOTH)
    room = plan.of(slow).account().total_bytes
    assert search_plans(replace(slow, memory_bytes=room)).found[0].plan.factor == 8


def test_frozen_parameters_are_gathered_and_neither_reduced_nor_stepped():
    all_trained, some = scenario(), scenario(frozen=("h.[0-2].*", "wte.*", "wpe.*"))
    assert sum(unit.nbytes for unit in some.units) == sum(unit.nbytes for unit in all_trained.units)
    frozen = [unit.trainable_nbytes == 0 for unit in some.units]
    assert frozen == [True, True, True, True, False, False, False, False]
    reports = [each.run() for each in (all_trained, some)]
    assert reports[0].crossing_nbytes("forward gather") == reports[1].crossing_nbytes("forward gather")
    assert reports[0].crossing_nbytes("reduce-scatter") > reports[1].crossing_nbytes("reduce-scatter") > 0
    accounts = [{row.name: row.nbytes for row in each.account().rows} for each in (all_trained, some)]
    assert accounts[0]["parameters"] == accounts[1]["parameters"]
    assert accounts[0]["optimizer states"] > accounts[1]["optimizer states"]


def test_backward_ends_where_nothing_before_is_trained_and_frozen_weights_have_no_products():
    before, between = scenario(frozen=("w?e.*", "h.0.*")), scenario(frozen=("h.3.*",))
    assert [unit.backward_s for unit in before.units[:2]] == [0.0, 0.0]
    assert all(unit.backward_s == pytest.approx(2 * unit.forward_s) for unit in before.units[2:])
    assert between.units[4].backward_s == pytest.approx(between.units[4].forward_s)


@pytest.mark.parametrize(
    ("frozen", "words"),
    [(("nothing.*",), "no parameter of .* has such a name; the nearest"), (("*",), "leaves nothing")],
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(frozen, words):
    with pytest.raises(ConfigError, match=words):
        _ = scenario(frozen=frozen).units


def test_adapters_freeze_the_model_already():
    with pytest.raises(ConfigError, match="leave --freeze out"):
        scenario(frozen=("h.0.*",), lora_rank=8)
