import math

import pytest

from benchmarks.gradients import bert_large, num_parameters, resnet50


def test_resnet50_has_the_published_parameters():
    shapes = resnet50()
    assert num_parameters(shapes) == 25_557_032
    assert len(shapes) == 161


def test_resnet50_has_53_convolutions_and_one_linear_layer():
    shapes = [shape for _, shape in resnet50()]
    assert sum(len(shape) == 4 for shape in shapes) == 53
    assert [shape for shape in shapes if len(shape) == 2] == [(1000, 2048)]


def test_bert_large_has_the_published_parameters():
    shapes = bert_large()
    assert num_parameters(shapes) == 335_141_888
    assert len(shapes) == 391


def test_every_bert_layer_has_twelve_hidden_squared_weights():
    weights = [shape for name, shape in bert_large() if name.startswith("encoder.layer.7.") and len(shape) == 2]
    assert sum(math.prod(shape) for shape in weights) == 12 * 1024**2


@pytest.mark.parametrize("model", [resnet50, bert_large])
def test_no_two_gradients_share_a_name(model):
    names = [name for name, _ in model()]
    assert len(set(names)) == len(names)
