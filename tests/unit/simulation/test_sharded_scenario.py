"""A question about sharded training becomes units, a job and an account of memory."""

from dataclasses import replace

import pytest

from coarse.collectives.shape import Collective
from coarse.errors import CapacityError, ConfigError
from coarse.hardware.gpt import gpt
from coarse.hardware.presets import load_preset
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.units import ComputeRate, units_of
from coarse.strategy.sharding import Fcdp, Fsdp
from tests.unit.simulation.sharded_jobs import simulated, units

SCENARIO = ShardedScenario(
    machine=load_preset("fcdp-a40-10gbe"),
    model_name="gpt-10b",
    policy=ShardedPolicy(sharding=Fcdp()),
    batch=8,
    num_nodes=2,
    gpus_per_node=8,
)


def test_units_hold_all_parameters_and_compute_all_products():
    model = gpt("gpt-10b", 256)
    assert sum(unit.nbytes for unit in SCENARIO.units) == 2 * model.num_parameters
    seconds = sum(unit.forward_s for unit in SCENARIO.units)
    assert seconds == pytest.approx(8 * model.flops_per_sample / (0.2 * 149.7e12))


@pytest.mark.parametrize(("is_lora", "recomputes", "times"), [(0, 0, 2), (0, 1, 3), (1, 0, 1), (1, 1, 2)])
def test_backward_computes_forward_so_many_times(is_lora, recomputes, times):
    pace = ComputeRate(flops_per_s=1e12, recomputes=bool(recomputes))
    found = units_of(gpt("2x64x2", 8), batch=1, pace=pace, adapters={"h.0": 8} if is_lora else None)
    assert all(unit.backward_s == times * unit.forward_s for unit in found)


def test_lora_freezes_all_but_the_adapters_of_blocks():
    lora = replace(SCENARIO, lora_rank=8)
    trainable = [unit.trainable_nbytes for unit in lora.units]
    assert trainable == [0, *[2 * 64 * 4800] * 40, 0]
    assert sum(unit.frozen_nbytes for unit in lora.units) == sum(unit.nbytes for unit in SCENARIO.units)


def test_tau_fills_the_gpu_and_never_passes_it():
    assert SCENARIO.with_gpu_cache(0.0).policy.num_cached_units == 0
    full = SCENARIO.with_gpu_cache(1.0).policy.num_cached_units
    assert 0 < full < len(SCENARIO.units)
    roomy = replace(SCENARIO, memory_bytes=2 * SCENARIO.capacity_bytes).with_gpu_cache(1.0)
    assert roomy.policy.num_cached_units == len(SCENARIO.units)
    assert roomy.cached_bytes == sum(unit.nbytes for unit in SCENARIO.units if not unit.is_of_root)
    used, (embedding, block, *_) = SCENARIO.account().total_bytes, SCENARIO.units
    tight = replace(SCENARIO, memory_bytes=used + embedding.nbytes + block.nbytes - 1)
    assert tight.with_gpu_cache(1.0).policy.num_cached_units == 2  # what stays anyway, and a block
    overlapped = replace(SCENARIO, schedule=Schedule.OVERLAPPED)
    room = overlapped.account().total_bytes + embedding.nbytes + block.nbytes - 1
    overlapped = replace(overlapped, memory_bytes=room).with_gpu_cache(1.0)
    assert (overlapped.policy.num_cached_units, overlapped.cached_bytes) == (1, embedding.nbytes)
    for wrong in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="tau"):
            SCENARIO.with_gpu_cache(wrong)


def test_fcdp_holds_what_zero3_holds_and_a_batch_too_large_is_refused_with_one_that_fits():
    zero3 = replace(SCENARIO, policy=ShardedPolicy(sharding=Fsdp()))
    assert zero3.account().total_bytes == SCENARIO.account().total_bytes
    largest = SCENARIO.largest_batch()
    assert replace(SCENARIO, batch=largest).require_fit()
    with pytest.raises(CapacityError, match=f"lower the batch to {largest}"):
        replace(SCENARIO, batch=2 * largest).require_fit()


def test_an_iteration_takes_its_network_bound():
    policy = ShardedPolicy(sharding=Fsdp(), collective=Collective.RING)
    report = replace(SCENARIO, policy=policy, schedule=Schedule.OVERLAPPED).run()
    bound_s = 3 * 15 / 16 * 2 * SCENARIO.model.num_parameters / 1.186e9
    assert bound_s < report.iteration_s < 1.01 * bound_s


@pytest.mark.parametrize("wrong", [{"peak_share": 0.0}, {"batch": 0}, {"lora_rank": -1}, {"model_name": "gpt-1t"}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        replace(SCENARIO, **wrong).job()


def test_units_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="different names"):
        simulated(Fsdp(), of=units(1) * 2)
