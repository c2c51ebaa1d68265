"""GPT's shapes against arithmetic that leaves the layers out."""

import pytest

from coarse.errors import ConfigError
from coarse.hardware.gpt import GPT_SHAPES, OPT_SHAPES, GptShape, adapter_numel, gpt
from coarse.hardware.models import Precision

BILLIONS = {"gpt-10b": 11.308, "gpt-15b": 16.224, "gpt-20b": 21.610, "gpt-25b": 24.417, "gpt-30b": 30.642}


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_shapes_have_the_parameters_that_arithmetic_gives(name, billions):
    shape = GPT_SHAPES[name]
    block = 12 * shape.hidden**2 + 13 * shape.hidden
    counted = gpt(name, 256).num_parameters
    assert counted == shape.num_layers * block + (50257 + 1024 + 2) * shape.hidden
    assert counted / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize("name", OPT_SHAPES)
def test_opts_have_their_own_vocabulary_and_positions(name):
    shape = OPT_SHAPES[name]
    block = 12 * shape.hidden**2 + 13 * shape.hidden
    assert gpt(name, 2048).num_parameters == shape.num_layers * block + (50272 + 2048 + 2) * shape.hidden
    with pytest.raises(ConfigError, match="takes sequences of 1 to 2048 tokens, got 2049"):
        gpt(name, 2049)


def test_a_token_takes_about_two_operations_per_parameter():
    model = gpt("gpt-10b", 256)
    assert model.flops_per_sample / 256 / 2 == pytest.approx(model.num_parameters, rel=0.01)


def test_a_block_keeps_34_bytes_per_token_and_hidden_number():
    model = gpt("gpt-15b", 128)
    block = model.layers[1]
    assert block.activation_bytes_per_sample(Precision.FP16) == 34 * 128 * 5760


def test_adapters_of_rank_8_are_below_one_per_cent():
    for name, shape in GPT_SHAPES.items():
        adapters = shape.num_layers * adapter_numel(shape, 8)
        assert 0 < adapters < 0.01 * gpt(name, 256).num_parameters


def test_a_shape_may_be_written_out():
    assert gpt("40x4800x40", 256).num_parameters == gpt("gpt-10b", 256).num_parameters


def test_wrong_shapes_and_lengths_are_refused():
    with pytest.raises(ConfigError, match="gpt-10b"):
        gpt("gpt-11b", 256)
    with pytest.raises(ConfigError, match="1 to 1024"):
        gpt("gpt-10b", 2048)
    with pytest.raises(ConfigError, match="multiple of the heads"):
        GptShape(num_layers=1, hidden=10, num_heads=3)
