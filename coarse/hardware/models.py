# Pure: no MPI, threads, clock or environment.
"""Models as emulated workers need them: per layer parameters, arithmetic and numbers for backward.

ResNet-50 follows He et al. 2016 (bottleneck blocks, stride in the 3x3 convolution as in the later "v1.5"); BERT-large
follows Devlin et al. 2019 with its pooler. A parameter's gradient has the parameter's shape.

[Note: saved for backward] A layer counts the numbers that its backward pass reads again, each tensor once, at the layer
that reads it. Fused kernels keep a transformer layer's s*h*(34 + 5*a*s/h) bytes in fp16 (Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4.1): 16sh + 2as^2 numbers and 2sh + as^2
one-byte dropout masks. Frameworks that run every operation as a separate kernel keep masks as numbers, and further
numbers inside GELU (2 x 4sh: the tanh and the cdf) and layer normalisation (2 x sh: the scaled inverse deviation),
counted from the definition in google-research/bert modeling.py.
"""

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coarse.errors import ConfigError

NamedShape = tuple[str, tuple[int, ...]]

RESNET50_BLOCKS = (3, 4, 6, 3)
RESNET_EXPANSION = 4
RESNET_IMAGE_SIDE = 224


class Precision(enum.StrEnum):
    """Precision of a worker's compute; fp16 is mixed precision with fp32 master parameters."""

    FP32 = "fp32"
    FP16 = "fp16"

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return {"fp32": 4, "fp16": 2}[self]


class Kernels(enum.StrEnum):
    """Kernels by which a framework runs a layer's operations; see [Note: saved for backward]."""

    FUSED = "fused"
    SEPARATE = "separate"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Step of the forward pass; backward computes all its gradients together."""

    name: str
    parameters: tuple[NamedShape, ...]
    flops_per_sample: int
    """Number of forward's matrix products and convolutions; a multiply and an add are two."""
    saved_numel: int = 0
    """Numbers per sample that fused kernels keep for backward."""
    mask_numel: int = 0
    """Dropout decisions per sample: a byte each when fused, else a number each."""
    unfused_numel: int = 0
    """Numbers per sample that separate kernels keep beyond those."""

    def __post_init__(self) -> None:
        counts = (self.flops_per_sample, self.saved_numel, self.mask_numel, self.unfused_numel)
        if min(counts) < 0:
            raise ValueError(f"layer {self.name!r}: counts must be at least 0, got {counts}")

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the layer."""
        return sum(math.prod(shape) for _, shape in self.parameters)

    def activation_bytes_per_sample(self, precision: Precision, kernels: Kernels = Kernels.FUSED) -> int:
        """Return the bytes that one sample leaves for backward; see [Note: saved for backward]."""
        if kernels is Kernels.FUSED:
            return self.saved_numel * precision.itemsize + self.mask_numel
        return (self.saved_numel + self.mask_numel + self.unfused_numel) * precision.itemsize


@dataclass(frozen=True, kw_only=True)
class Model:
    """Layers in the order of the forward pass."""

    name: str
    sample: str
    """Description of one sample."""
    layers: tuple[Layer, ...] = field(repr=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.shapes]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"model {self.name!r} needs parameters of different names, got {names[:8]}")

    @property
    def shapes(self) -> tuple[NamedShape, ...]:
        """Shapes of all parameters in forward order; backward produces gradients from the last one."""
        return tuple(parameter for layer in self.layers for parameter in layer.parameters)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(layer.num_parameters for layer in self.layers)

    @property
    def flops_per_sample(self) -> int:
        """Number of floating-point operations of the forward pass; see Layer."""
        return sum(layer.flops_per_sample for layer in self.layers)

    def activation_bytes_per_sample(self, precision: Precision, kernels: Kernels = Kernels.FUSED) -> int:
        """Return the bytes that one sample leaves for backward; see [Note: saved for backward]."""
        return sum(layer.activation_bytes_per_sample(precision, kernels) for layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class BertShape:
    """Depth and width of a BERT; its tables are those of the uncased vocabulary unless said otherwise."""

    num_layers: int
    hidden: int
    num_heads: int
    intermediate: int
    vocabulary: int = 30522
    positions: int = 512
    num_types: int = 2


BERT_LARGE = BertShape(num_layers=24, hidden=1024, num_heads=16, intermediate=4096)


def resnet50() -> Model:
    """Return ResNet-50 on ImageNet."""
    return resnet(RESNET50_BLOCKS, "resnet50")


def resnet(blocks: tuple[int, ...], name: str) -> Model:
    """Return a ResNet of bottleneck blocks, so many in each of four stages, on ImageNet, under a name."""
    side = RESNET_IMAGE_SIDE
    return Model(name=name, sample=f"{side} x {side} image", layers=tuple(_resnet_layers(blocks)))


def bert_large(sequence: int = 384) -> Model:
    """Return BERT-large (uncased vocabulary) on sequences of a length.

    A SQuAD head would add 2,050 parameters to it.
    """
    return bert(BERT_LARGE, "bert-large", sequence)


def bert(shape: BertShape, name: str, sequence: int) -> Model:
    """Return a BERT of a shape with its pooler and without a head, under a name.

    It takes sequences of so many tokens.
    """
    if not 1 <= sequence <= shape.positions:
        raise ConfigError(f"BERT takes sequences of 1 to {shape.positions} tokens, got {sequence}", key="sequence")
    return Model(name=name, sample=f"sequence of {sequence} tokens", layers=tuple(_bert_layers(shape, sequence)))


def uniform(num_layers: int, parameters_per_layer: int) -> Model:
    """Return equal layers whose parameters each take one multiply and one add per sample.

    They keep nothing for backward.
    """
    if num_layers < 1 or parameters_per_layer < 1:
        raise ConfigError(
            f"a uniform model needs at least 1 layer of 1 parameter, got {num_layers} of {parameters_per_layer}"
        )
    layers = tuple(
        Layer(
            name=f"layer{index}",
            parameters=((f"layer{index}.weight", (parameters_per_layer,)),),
            flops_per_sample=2 * parameters_per_layer,
        )
        for index in range(num_layers)
    )
    return Model(name=f"uniform-{num_layers}x{parameters_per_layer}", sample="sample", layers=layers)


MODELS: dict[str, Callable[[], Model]] = {"resnet50": resnet50, "bert-large": bert_large}
"""Models that can be asked for by name."""


def model_named(name: str) -> Model:
    """Return the model of a name."""
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; there are {', '.join(MODELS)}", key="model")
    return MODELS[name]()


def _resnet_layers(blocks: tuple[int, ...]) -> Iterator[Layer]:
    side = RESNET_IMAGE_SIDE // 2
    yield _convolution("conv1", "bn1", inputs=3, outputs=64, kernel=7, side_in=RESNET_IMAGE_SIDE, side_out=side)
    pooled_numel = 64 * side**2  # the first activation, which max pooling reads again
    inputs, side = 64, side // 2
    for stage, num_blocks in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            prefix = f"layer{stage + 1}.{block}"
            yield from _bottleneck(prefix, inputs, width, side=side, stride=stride, has_projection=block == 0)
            inputs, side = width * RESNET_EXPANSION, side // stride
    flops = 2 * inputs * 1000
    saved_numel = inputs + inputs * side**2 + pooled_numel  # its input, the last block's output, that of conv1
    yield Layer(
        name="fc", parameters=tuple(_linear("fc", inputs, 1000)), flops_per_sample=flops, saved_numel=saved_numel
    )


def _bottleneck(
    prefix: str, inputs: int, width: int, *, side: int, stride: int, has_projection: bool
) -> Iterator[Layer]:
    """Yield three convolutions beside the identity or a projection, which reads the first one's input."""
    outputs, side_out = width * RESNET_EXPANSION, side // stride

    def part(number: int, inputs: int, outputs: int, kernel: int, side_in: int) -> Layer:
        names = (f"{prefix}.conv{number}", f"{prefix}.bn{number}")
        out = side if number == 1 else side_out
        return _convolution(*names, inputs=inputs, outputs=outputs, kernel=kernel, side_in=side_in, side_out=out)

    yield part(1, inputs, width, 1, side)
    yield part(2, width, width, 3, side)
    yield part(3, width, outputs, 1, side_out)
    if has_projection:
        names = (f"{prefix}.downsample.0", f"{prefix}.downsample.1")
        yield _convolution(*names, inputs=inputs, outputs=outputs, kernel=1, side_in=0, side_out=side_out)


def _convolution(
    convolution: str, norm: str, *, inputs: int, outputs: int, kernel: int, side_in: int, side_out: int
) -> Layer:
    """Return a convolution and its normalisation, which keep their inputs.

    `side_in` 0: another layer keeps it.
    """
    weight = (f"{convolution}.weight", (outputs, inputs, kernel, kernel))
    return Layer(
        name=convolution,
        parameters=(weight, *_norm(norm, outputs)),
        flops_per_sample=2 * math.prod(weight[1]) * side_out**2,
        saved_numel=inputs * side_in**2 + outputs * side_out**2,
    )


def _bert_layers(shape: BertShape, sequence: int) -> Iterator[Layer]:
    hidden = shape.hidden
    numel = sequence * hidden
    tables = (("word", shape.vocabulary), ("position", shape.positions), ("token_type", shape.num_types))
    weights = tuple((f"embeddings.{name}_embeddings.weight", (rows, hidden)) for name, rows in tables)
    yield Layer(
        name="embeddings",
        parameters=(*weights, *_norm("embeddings.LayerNorm", hidden)),
        flops_per_sample=0,
        saved_numel=numel,
        mask_numel=numel,
        unfused_numel=numel,
    )
    for index in range(shape.num_layers):
        yield _attention(f"encoder.layer.{index}", shape, sequence)
        yield _feed_forward(f"encoder.layer.{index}", shape, sequence)
    yield Layer(
        name="pooler",
        parameters=tuple(_linear("pooler.dense", hidden, hidden)),
        flops_per_sample=2 * hidden**2,
        saved_numel=numel + hidden,  # the encoder's output, which the heads read, and its own
    )


def _attention(prefix: str, shape: BertShape, sequence: int) -> Layer:
    """Return an attention layer.

    It keeps its input, Q, K, V, the context and the sum (6sh), and the softmax before and after dropout (2as^2).
    """
    hidden = shape.hidden
    numel, scores = sequence * hidden, shape.num_heads * sequence**2
    names = [f"{prefix}.attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense")]
    linears = [parameter for name in names for parameter in _linear(name, hidden, hidden)]
    return Layer(
        name=f"{prefix}.attention",
        parameters=(*linears, *_norm(f"{prefix}.attention.output.LayerNorm", hidden)),
        flops_per_sample=4 * 2 * numel * hidden + 2 * 2 * sequence * numel,
        saved_numel=6 * numel + 2 * scores,
        mask_numel=numel + scores,
        unfused_numel=numel,
    )


def _feed_forward(prefix: str, shape: BertShape, sequence: int) -> Layer:
    """Return a feed-forward layer, which keeps its input, the sum (2sh), and GELU's ends (2 x 4sh)."""
    hidden, intermediate = shape.hidden, shape.intermediate
    numel, inner_numel = sequence * hidden, sequence * intermediate
    return Layer(
        name=f"{prefix}.feed_forward",
        parameters=(
            *_linear(f"{prefix}.intermediate.dense", hidden, intermediate),
            *_linear(f"{prefix}.output.dense", intermediate, hidden),
            *_norm(f"{prefix}.output.LayerNorm", hidden),
        ),
        flops_per_sample=2 * 2 * sequence * hidden * intermediate,
        saved_numel=2 * numel + 2 * inner_numel,
        mask_numel=numel,
        unfused_numel=numel + 2 * inner_numel,
    )


def _linear(prefix: str, inputs: int, outputs: int) -> Iterator[NamedShape]:
    yield f"{prefix}.weight", (outputs, inputs)
    yield f"{prefix}.bias", (outputs,)


def _norm(prefix: str, num_features: int) -> Iterator[NamedShape]:
    yield f"{prefix}.weight", (num_features,)
    yield f"{prefix}.bias", (num_features,)
