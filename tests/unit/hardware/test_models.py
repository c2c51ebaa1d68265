import math

import pytest

from coarse.errors import ConfigError
from coarse.hardware.models import (
    MODELS,
    Kernels,
    Layer,
    Model,
    Precision,
    bert_large,
    model_named,
    resnet50,
    uniform,
)

BOTH = pytest.mark.parametrize("model", [resnet50(), bert_large()], ids=lambda model: model.name)


def test_resnet50_has_the_published_parameters():
    assert resnet50().num_parameters == 25_557_032
    assert len(resnet50().shapes) == 161


def test_resnet50_has_53_convolutions_and_one_linear_layer():
    shapes = [shape for _, shape in resnet50().shapes]
    assert sum(len(shape) == 4 for shape in shapes) == 53
    assert [shape for shape in shapes if len(shape) == 2] == [(1000, 2048)]
    assert len(resnet50().layers) == 54


def test_resnet50_takes_the_known_4_09_billion_multiply_adds():
    assert resnet50().flops_per_sample / 2 == pytest.approx(4.089e9, rel=1e-3)


def test_resnet50_keeps_the_input_of_every_convolution_and_normalisation():
    inputs = 3 * 224**2 + 64 * 112**2 + sum(activations()) + 2048
    saved = sum(layer.saved_numel for layer in resnet50().layers)
    convolved = 11.11e6  # numbers that leave all convolutions, as published counters give for 224 x 224
    assert saved - inputs == pytest.approx(convolved, rel=1e-3)


def activations():
    """Numbers that leave the ReLUs and the first pooling, beyond the first ReLU, block by block."""
    yield 64 * 56**2
    side = 56
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(num_blocks):
            yield width * side**2
            side //= 2 if stage > 0 and block == 0 else 1
            yield width * side**2
            yield 4 * width * side**2


def test_bert_large_has_the_published_parameters():
    assert bert_large().num_parameters == 335_141_888
    assert len(bert_large().shapes) == 391


def test_every_bert_layer_has_twelve_hidden_squared_weights():
    weights = [shape for name, shape in bert_large().shapes if name.startswith("encoder.layer.7.") and len(shape) == 2]
    assert sum(math.prod(shape) for shape in weights) == 12 * 1024**2


@pytest.mark.parametrize("sequence", [128, 384, 512])
def test_a_transformer_layers_arithmetic_is_24sh2_and_4s2h(sequence):
    both = [layer for layer in bert_large(sequence).layers if layer.name.startswith("encoder.layer.0.")]
    assert len(both) == 2
    assert sum(layer.flops_per_sample for layer in both) == 24 * sequence * 1024**2 + 4 * sequence**2 * 1024


@pytest.mark.parametrize("sequence", [128, 384, 512])
def test_a_transformer_layer_keeps_the_bytes_of_the_published_formula(sequence):
    both = [layer for layer in bert_large(sequence).layers if layer.name.startswith("encoder.layer.23.")]
    kept = sum(layer.activation_bytes_per_sample(Precision.FP16) for layer in both)
    assert kept == sequence * 1024 * 34 + 5 * 16 * sequence**2


@BOTH
def test_fp32_keeps_twice_the_numbers_of_fp16_but_the_same_masks(model):
    masks = sum(layer.mask_numel for layer in model.layers)
    half = model.activation_bytes_per_sample(Precision.FP16)
    assert model.activation_bytes_per_sample(Precision.FP32) == 2 * (half - masks) + masks


@BOTH
def test_separate_kernels_never_keep_less_than_fused_ones(model):
    for layer in model.layers:
        separate = layer.activation_bytes_per_sample(Precision.FP32, Kernels.SEPARATE)
        assert separate >= layer.activation_bytes_per_sample(Precision.FP32, Kernels.FUSED)


@BOTH
def test_no_two_gradients_share_a_name(model):
    names = [name for name, _ in model.shapes]
    assert len(set(names)) == len(names)


@BOTH
def test_a_model_is_found_by_its_name(model):
    assert model_named(model.name) == model
    assert model.name in MODELS


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'vgg'; there are resnet50, bert-large"):
        model_named("vgg")


@pytest.mark.parametrize("sequence", [0, -1, 513])
def test_a_sequence_without_positions_is_refused(sequence):
    with pytest.raises(ConfigError, match="1 to 512 tokens"):
        bert_large(sequence)


def test_a_uniform_model_has_equal_layers():
    model = uniform(5, 1000)
    assert model.num_parameters == 5000
    assert {(layer.num_parameters, layer.flops_per_sample) for layer in model.layers} == {(1000, 2000)}


@pytest.mark.parametrize(("num_layers", "parameters"), [(0, 1), (1, 0), (-1, 5)])
def test_a_uniform_model_of_nothing_is_refused(num_layers, parameters):
    with pytest.raises(ConfigError, match="at least 1 layer of 1 parameter"):
        uniform(num_layers, parameters)


def test_parameters_of_one_name_are_refused():
    layer = Layer(name="a", parameters=(("w", (2,)),), flops_per_sample=0)
    with pytest.raises(ValueError, match="different names"):
        Model(name="twice", sample="sample", layers=(layer, layer))


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="at least 0"):
        Layer(name="a", parameters=(), flops_per_sample=-1)
