"""The eight models that COARSE II-B trains for figure 2, as far as it says: those of TensorFlow and of NVIDIA.

The figure's labels are not in the text at hand. TensorFlow's own benchmarks train five models of images (Inception v3,
ResNet-50, ResNet-152, AlexNet, VGG-16), and NVIDIA's DeepLearningExamples BERT, GNMT and the Transformer: an
assumption, as each batch is that of the published throughput. Shapes: Simonyan and Zisserman 2015 (VGG-16, column D),
Krizhevsky 2014 (AlexNet of one tower), Szegedy et al. 2016 (Inception v3 without its auxiliary head), He et al. 2016,
Wu et al. 2016 in NVIDIA's version (GNMT of four layers), Vaswani et al. 2017 (the big Transformer).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from coarse.hardware.compute import T4_OVER_V100, Basis, Throughput
from coarse.hardware.models import Layer, Model, NamedShape, Precision, model_named, resnet

_TF = "TensorFlow benchmarks.md of 2017, P100 of a DGX-1, fp32, synthetic data"
_T4_OVER_P100 = {Precision.FP32: 128.0 / 219.0, Precision.FP16: 447.5 / 219.0}
"""Of ResNet-50's images/s, by which other models of images are scaled: an assumption."""
_TRANSLATION = "NVIDIA DeepLearningExamples, PyTorch/Translation/{}/README.md of 2019, V100 16 GB"
_HIDDEN, _FEED_FORWARD, _VOCABULARY = 1024, 4096, 32320
_TOKEN_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One of the eight, as it is trained."""

    batch: int
    """Samples of a GPU."""
    sample_bytes: int
    """Copied from the host to a GPU for one sample."""


def _image_bytes(side: int) -> int:
    return 4 * 3 * side**2


EIGHT = {
    "resnet50": Trained(batch=64, sample_bytes=_image_bytes(224)),
    "resnet152": Trained(batch=64, sample_bytes=_image_bytes(224)),
    "inception-v3": Trained(batch=64, sample_bytes=_image_bytes(299)),
    "vgg16": Trained(batch=64, sample_bytes=_image_bytes(224)),
    "alexnet": Trained(batch=512, sample_bytes=_image_bytes(224)),
    "bert-large": Trained(batch=2, sample_bytes=4 * 3 * 384),  # tokens, mask and types as 4-byte numbers
    "gnmt": Trained(batch=6400, sample_bytes=_TOKEN_BYTES),  # 128 pairs of sentences, of about 50 tokens each
    "transformer-big": Trained(batch=5120, sample_bytes=_TOKEN_BYTES),
}
"""Samples are images, sequences of 384 tokens, and tokens. GNMT's tokens of a pair: its README's tokens/s times its
minutes for six epochs, over 21 million pairs."""


def _of_images(model: str, batch: int, p100_per_s: float) -> Iterator[Throughput]:
    for precision, ratio in _T4_OVER_P100.items():
        source = f"{_TF}, times T4's over P100's of ResNet-50 ({ratio:.3f})"
        yield Throughput("t4", model, precision, batch, p100_per_s * ratio, Basis.ASSUMPTION, source)


def _of_tokens(model: str, folder: str, rates: dict[tuple[Precision, int], float]) -> Iterator[Throughput]:
    for (precision, batch), v100_per_s in rates.items():
        ratio = T4_OVER_V100[precision, 2]
        source = f"{_TRANSLATION.format(folder)}, times T4's inference of BERT-large over V100's ({ratio:.3f})"
        yield Throughput("t4", model, precision, batch, v100_per_s * ratio, Basis.ASSUMPTION, source)


THROUGHPUTS_OF_MORE = (
    *_of_images("resnet152", 64, 91.8), *_of_images("inception-v3", 64, 142.0), *_of_images("vgg16", 64, 154.0),
    *_of_images("alexnet", 512, 2987.0),
    *_of_tokens("gnmt", "GNMT", {(Precision.FP32, 6400): 21346.0, (Precision.FP16, 6400): 66050.0}),
    *_of_tokens(
        "transformer-big", "Transformer", {(Precision.FP32, 2560): 7635.0, (Precision.FP16, 5120): 32153.0}
    ),
)  # fmt: skip
"""Of a T4, for the models that coarse does not know by name."""


def model_of(name: str) -> Model:
    """Return one of the eight.

    Raises:
        ConfigError: a name that is none of theirs.
    """
    layers = {"vgg16": _vgg16, "alexnet": _alexnet, "inception-v3": _inception_v3, "gnmt": _gnmt,
              "transformer-big": _transformer_big}  # fmt: skip
    if name == "resnet152":
        return resnet((3, 8, 36, 3), name)
    if name not in layers:
        return model_named(name)
    is_of_tokens = name in ("gnmt", "transformer-big")
    return Model(name=name, sample="token" if is_of_tokens else "image", layers=tuple(layers[name]()))


def _layer(name: str, shapes: list[tuple[int, ...]], *, times: int = 1) -> Layer:
    """A layer whose first shape is its weight, which meets every sample so many times."""
    names = ("weight", "bias", "more", "last")
    parameters: tuple[NamedShape, ...] = tuple(
        (f"{name}.{part}", shape) for part, shape in zip(names, shapes, strict=False)
    )
    products = sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    return Layer(name=name, parameters=parameters, flops_per_sample=2 * products * times)


def _vgg16() -> Iterator[Layer]:
    inputs, side = 3, 224
    for stage, (width, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        for number in range(count):
            yield _layer(f"conv{stage}.{number}", [(width, inputs, 3, 3), (width,)], times=side**2)
            inputs = width
        side //= 2
    yield from _classifier(512 * side**2)


def _alexnet() -> Iterator[Layer]:
    for number, (inputs, outputs, kernel, side) in enumerate(
        ((3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13))
    ):
        yield _layer(f"conv{number}", [(outputs, inputs, kernel, kernel), (outputs,)], times=side**2)
    yield from _classifier(256 * 6**2)


def _classifier(inputs: int) -> Iterator[Layer]:
    """Three linear layers, to 1,000 classes."""
    for number, outputs in enumerate((4096, 4096, 1000)):
        yield _layer(f"fc{number}", [(outputs, inputs), (outputs,)])
        inputs = outputs


_Convolution = tuple[int, int, int, int]
"""Inputs, outputs, and the kernel's height and width."""
_INCEPTION_STEM = (((3, 32, 3, 3), 149), ((32, 32, 3, 3), 147), ((32, 64, 3, 3), 147), ((64, 80, 1, 1), 73),
                   ((80, 192, 3, 3), 71))  # fmt: skip


def _inception_v3() -> Iterator[Layer]:
    blocks: list[tuple[int, list[_Convolution]]] = [(side, [each]) for each, side in _INCEPTION_STEM]
    blocks += [(35, _block_a(inputs, pooled)) for inputs, pooled in ((192, 32), (256, 64), (288, 64))]
    blocks += [(17, [(288, 384, 3, 3), (288, 64, 1, 1), (64, 96, 3, 3), (96, 96, 3, 3)])]
    blocks += [(17, _block_b(width)) for width in (128, 160, 160, 192)]
    reduced: list[_Convolution] = [(768, 192, 1, 1), (192, 320, 3, 3), (768, 192, 1, 1), (192, 192, 1, 7)]
    blocks += [(8, [*reduced, (192, 192, 7, 1), (192, 192, 3, 3)])]
    blocks += [(8, _block_c(inputs)) for inputs in (1280, 2048)]
    for number, (side, convolutions) in enumerate(blocks):
        for place, (inputs, outputs, height, width) in enumerate(convolutions):
            shapes: list[tuple[int, ...]] = [(outputs, inputs, height, width), (outputs,), (outputs,)]
            yield _layer(f"block{number}.{place}", shapes, times=side**2)
    yield _layer("fc", [(1000, 2048), (1000,)])


def _block_a(inputs: int, pooled: int) -> list[_Convolution]:
    return [(inputs, 64, 1, 1), (inputs, 48, 1, 1), (48, 64, 5, 5), (inputs, 64, 1, 1), (64, 96, 3, 3), (96, 96, 3, 3),
            (inputs, pooled, 1, 1)]  # fmt: skip


def _block_b(width: int) -> list[_Convolution]:
    """Convolutions of seven are a row's and a column's."""
    row, column = (width, width, 1, 7), (width, width, 7, 1)
    return [(768, 192, 1, 1), (768, width, 1, 1), row, (width, 192, 7, 1), (768, width, 1, 1), column, row, column,
            (width, 192, 1, 7), (768, 192, 1, 1)]  # fmt: skip


def _block_c(inputs: int) -> list[_Convolution]:
    pair: list[_Convolution] = [(384, 384, 1, 3), (384, 384, 3, 1)]
    return [(inputs, 320, 1, 1), (inputs, 384, 1, 1), *pair, (inputs, 448, 1, 1), (448, 384, 3, 3), *pair,
            (inputs, 192, 1, 1)]  # fmt: skip


def _gnmt() -> Iterator[Layer]:
    """Embeddings that encoder and decoder share, four layers each, attention, and a classifier."""
    hidden = _HIDDEN
    yield Layer(name="embeddings", parameters=(("embeddings.weight", (_VOCABULARY, hidden)),), flops_per_sample=0)
    inputs = {"encoder": (hidden, hidden, 2 * hidden, hidden, hidden), "decoder": (hidden, *(3 * [2 * hidden]))}
    for side, each in inputs.items():  # the encoder's first layer reads both ways: two of them
        for number, width in enumerate(each):
            shapes: list[tuple[int, ...]] = [(4 * hidden, width), (4 * hidden,), (4 * hidden, hidden), (4 * hidden,)]
            yield _layer(f"{side}.{number}", shapes)
    yield _layer("attention", [(hidden, hidden), (hidden,), (hidden, hidden)])
    yield _layer("classifier", [(_VOCABULARY, hidden), (_VOCABULARY,)])


def _transformer_big() -> Iterator[Layer]:
    """A vocabulary of both languages, six blocks of the encoder and six of the decoder, which attends twice."""
    hidden = _HIDDEN
    yield Layer(name="embeddings", parameters=(("embeddings.weight", (33708, hidden)),), flops_per_sample=0)
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        for number in range(6):
            for which in range(attentions):
                yield _layer(f"{side}.{number}.attention{which}", [(4 * hidden, hidden), (4 * hidden,), (2 * hidden,)])
            for part, shape in (("in", (_FEED_FORWARD, hidden)), ("out", (hidden, _FEED_FORWARD))):
                yield _layer(f"{side}.{number}.{part}", [shape, (shape[0],), (hidden,)])
