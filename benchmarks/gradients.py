"""Gradient sets of well-known models: the name and shape of each parameter, written as their definitions.

ResNet-50 follows He et al. 2016 (bottleneck blocks, stride in the 3x3 convolution, which has no effect on shapes);
BERT-large follows Devlin et al. 2019 with its pooler. A parameter's gradient has the parameter's shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

NamedShape = tuple[str, tuple[int, ...]]

RESNET50_BLOCKS = (3, 4, 6, 3)
RESNET_EXPANSION = 4
BERT_LARGE_LAYERS = 24
BERT_LARGE_HIDDEN = 1024
BERT_LARGE_INTERMEDIATE = 4096
BERT_VOCABULARY = 30522
BERT_POSITIONS = 512
BERT_TYPES = 2


def resnet50() -> list[NamedShape]:
    """Shapes of ResNet-50's parameters in the order of its forward pass."""
    return list(_resnet50())


def bert_large() -> list[NamedShape]:
    """Shapes of BERT-large's parameters (uncased vocabulary, pooler included) in the order of its forward pass."""
    return list(_bert_large())


def num_parameters(shapes: list[NamedShape]) -> int:
    """How many numbers a gradient set holds."""
    return sum(math.prod(shape) for _, shape in shapes)


def _resnet50() -> Iterator[NamedShape]:
    yield from _convolution_and_norm("conv1", "bn1", inputs=3, outputs=64, kernel=7)
    inputs = 64
    for stage, num_blocks in enumerate(RESNET50_BLOCKS):
        width = 64 * 2**stage
        for block in range(num_blocks):
            prefix = f"layer{stage + 1}.{block}"
            yield from _bottleneck(prefix, inputs, width, has_projection=block == 0)
            inputs = width * RESNET_EXPANSION
    yield from _linear("fc", inputs, 1000)


def _bottleneck(prefix: str, inputs: int, width: int, *, has_projection: bool) -> Iterator[NamedShape]:
    outputs = width * RESNET_EXPANSION
    yield from _convolution_and_norm(f"{prefix}.conv1", f"{prefix}.bn1", inputs=inputs, outputs=width, kernel=1)
    yield from _convolution_and_norm(f"{prefix}.conv2", f"{prefix}.bn2", inputs=width, outputs=width, kernel=3)
    yield from _convolution_and_norm(f"{prefix}.conv3", f"{prefix}.bn3", inputs=width, outputs=outputs, kernel=1)
    if has_projection:
        names = (f"{prefix}.downsample.0", f"{prefix}.downsample.1")
        yield from _convolution_and_norm(*names, inputs=inputs, outputs=outputs, kernel=1)


def _convolution_and_norm(
    convolution: str, norm: str, *, inputs: int, outputs: int, kernel: int
) -> Iterator[NamedShape]:
    yield f"{convolution}.weight", (outputs, inputs, kernel, kernel)
    yield from _norm(norm, outputs)


def _bert_large() -> Iterator[NamedShape]:
    hidden = BERT_LARGE_HIDDEN
    yield "embeddings.word_embeddings.weight", (BERT_VOCABULARY, hidden)
    yield "embeddings.position_embeddings.weight", (BERT_POSITIONS, hidden)
    yield "embeddings.token_type_embeddings.weight", (BERT_TYPES, hidden)
    yield from _norm("embeddings.LayerNorm", hidden)
    for layer in range(BERT_LARGE_LAYERS):
        yield from _encoder_layer(f"encoder.layer.{layer}")
    yield from _linear("pooler.dense", hidden, hidden)


def _encoder_layer(prefix: str) -> Iterator[NamedShape]:
    hidden = BERT_LARGE_HIDDEN
    for projection in ("query", "key", "value"):
        yield from _linear(f"{prefix}.attention.self.{projection}", hidden, hidden)
    yield from _linear(f"{prefix}.attention.output.dense", hidden, hidden)
    yield from _norm(f"{prefix}.attention.output.LayerNorm", hidden)
    yield from _linear(f"{prefix}.intermediate.dense", hidden, BERT_LARGE_INTERMEDIATE)
    yield from _linear(f"{prefix}.output.dense", BERT_LARGE_INTERMEDIATE, hidden)
    yield from _norm(f"{prefix}.output.LayerNorm", hidden)


def _linear(prefix: str, inputs: int, outputs: int) -> Iterator[NamedShape]:
    yield f"{prefix}.weight", (outputs, inputs)
    yield f"{prefix}.bias", (outputs,)


def _norm(prefix: str, num_features: int) -> Iterator[NamedShape]:
    yield f"{prefix}.weight", (num_features,)
    yield f"{prefix}.bias", (num_features,)
