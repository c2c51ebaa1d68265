"""The account of sharded training against FCDP VI-A's worked numbers."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.gpt import GPT_SHAPES, adapter_numel, gpt
from coarse.hardware.models import uniform
from coarse.hardware.sharded_memory import ShardedTraining, largest_power_of_two, sharded_account
from coarse.strategy.sharding import States

TRAINING = ShardedTraining(model=gpt("gpt-30b", 256), num_gpus=32, num_nodes=4, held=States.SHARDED)


def row(training, name, batch=1):
    return next((one.nbytes for one in sharded_account(training, batch).rows if one.name == name), 0)


def test_states_of_full_sharding_are_16_bytes_of_a_gpus_parameters():
    states = sum(row(TRAINING, name) for name in ("parameters", "gradients", "optimizer states"))
    assert states == pytest.approx(16 * TRAINING.model.num_parameters / 32, rel=1e-6)


def test_a_secondary_copy_takes_a_nodes_share_more():
    more = replace(TRAINING, held=States.SECONDARY)
    extra = sharded_account(more, 4).total_bytes - sharded_account(TRAINING, 4).total_bytes
    assert extra == pytest.approx(2 * TRAINING.model.num_parameters / 8, rel=1e-6)  # VI-A: about 7.5 GB
    doubled = replace(more, secondary_growth=2.0)
    assert row(doubled, "secondary shards") == pytest.approx(2 * extra, rel=1e-6)


def test_subgroups_hold_as_many_times_more_as_there_are_nodes():
    subgroup = replace(TRAINING, held=States.SUBGROUP)
    assert row(subgroup, "parameters") == pytest.approx(4 * row(TRAINING, "parameters"), rel=1e-6)
    replicated = replace(TRAINING, held=States.REPLICATED)
    assert row(replicated, "parameters") == 2 * TRAINING.model.num_parameters
    assert row(replicated, "optimizer states") == row(TRAINING, "optimizer states")


def test_frozen_parameters_have_neither_gradients_nor_states():
    adapters = 40 * adapter_numel(GPT_SHAPES["gpt-30b"], 8)
    lora = replace(TRAINING, trainable_numel=adapters, frozen_numel=TRAINING.model.num_parameters)
    assert row(lora, "optimizer states") == adapters * 12 // 32
    assert row(lora, "parameters") == (TRAINING.model.num_parameters + adapters) * 2 // 32


def test_the_largest_batch_fits_and_its_double_does_not():
    capacity = 44 * 2**30
    batch = largest_power_of_two(TRAINING, capacity)
    assert sharded_account(TRAINING, batch).total_bytes <= capacity < sharded_account(TRAINING, 2 * batch).total_bytes
    assert largest_power_of_two(TRAINING, 2**30) == 0


def test_what_has_no_limit_or_no_even_nodes_is_refused():
    with pytest.raises(ConfigError, match="no limit"):
        largest_power_of_two(replace(TRAINING, model=uniform(2, 10)), 2**40)
    with pytest.raises(ConfigError, match="evenly"):
        replace(TRAINING, num_gpus=30)
    with pytest.raises(ConfigError, match="at least 1 sample"):
        sharded_account(TRAINING, 0)
