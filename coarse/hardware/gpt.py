# Pure: no MPI, threads, clock or environment.
"""GPT-2-shaped models of any size: FCDP's five (its Table IV) and OPT's ten (LuWu's Table 2).

They have one layer per block. Sharded training gathers a block at once (an FSDP unit). Activations are those of fused
attention, which keeps no scores: see `Layer` and `models`, [Note: saved for backward], of which this is the part
without 5 a s^2.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from coarse.errors import ConfigError
from coarse.hardware.models import Layer, Model, NamedShape, Precision
from coarse.hardware.quantities import require_positive

GPT_VOCABULARY = 50257
GPT_POSITIONS = 1024


@dataclass(frozen=True, kw_only=True)
class GptShape:
    """Depth and width of a GPT.

    Heads change neither parameters nor, with fused attention, the numbers that backward keeps.
    """

    num_layers: int
    hidden: int
    num_heads: int
    vocabulary: int = GPT_VOCABULARY
    positions: int = GPT_POSITIONS

    def __post_init__(self) -> None:
        for key in ("num_layers", "hidden", "num_heads", "vocabulary", "positions"):
            require_positive(key, getattr(self, key))
        if self.hidden % self.num_heads:
            raise ConfigError(
                f"hidden must be a multiple of the heads, got {self.hidden} and {self.num_heads}", key="hidden"
            )


GPT_SHAPES = {
    "gpt-10b": GptShape(num_layers=40, hidden=4800, num_heads=40),
    "gpt-15b": GptShape(num_layers=40, hidden=5760, num_heads=45),
    "gpt-20b": GptShape(num_layers=40, hidden=6656, num_heads=52),
    "gpt-25b": GptShape(num_layers=39, hidden=7168, num_heads=56),
    "gpt-30b": GptShape(num_layers=40, hidden=7936, num_heads=62),
}
"""Shapes of FCDP Table IV; by these they have 11.3, 16.2, 21.6, 24.4 and 30.6 billion parameters."""
OPT_VOCABULARY = 50272
OPT_POSITIONS = 2048


def _opt(num_layers: int, num_heads: int, hidden: int) -> GptShape:
    return GptShape(
        num_layers=num_layers, hidden=hidden, num_heads=num_heads, vocabulary=OPT_VOCABULARY, positions=OPT_POSITIONS
    )


OPT_SHAPES = {
    "opt-1.3b": _opt(24, 32, 2048),
    "opt-2.7b": _opt(32, 32, 2560),
    "opt-6.7b": _opt(32, 32, 4096),
    "opt-13b": _opt(40, 40, 5120),
    "opt-30b": _opt(48, 56, 7168),
    "opt-66b": _opt(64, 72, 9216),
    "opt-175b": _opt(96, 96, 12288),
    "opt-276b": _opt(112, 112, 14336),
    "opt-505b": _opt(124, 144, 18432),
    "opt-1t": _opt(172, 172, 22016),
}
"""Shapes of LuWu Table 2, which scales OPT (Zhang et al. 2022) up, from the smallest on."""


def gpt_shape(name: str) -> GptShape:
    """Return the shape of a name, or of LAYERSxHIDDENxHEADS such as 40x4800x40."""
    known_shapes = GPT_SHAPES | OPT_SHAPES
    if name in known_shapes:
        return known_shapes[name]
    if not (found := re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})x([0-9]{1,6})", name)):
        known = ", ".join(known_shapes)
        raise ConfigError(f"unknown GPT {name!r}; there are {known}, or write LAYERSxHIDDENxHEADS", key="model")
    num_layers, hidden, num_heads = map(int, found.groups())
    return GptShape(num_layers=num_layers, hidden=hidden, num_heads=num_heads)


def gpt(name: str, sequence: int) -> Model:
    """Return a GPT of a name or a shape on sequences of so many tokens; see `gpt_shape`."""
    return gpt_of(gpt_shape(name), name, sequence)


@cache
def gpt_of(shape: GptShape, name: str, sequence: int) -> Model:
    """Return a GPT of a shape, under a name."""
    if not 1 <= sequence <= shape.positions:
        raise ConfigError(f"{name} takes sequences of 1 to {shape.positions} tokens, got {sequence}", key="sequence")
    layers = tuple(_layers(shape, sequence))
    return Model(name=name, sample=f"sequence of {sequence} tokens", layers=layers)


def adapter_numel(shape: GptShape, rank: int) -> int:
    """Return the number of parameters of LoRA's adapters in one block.

    They are two thin matrices beside each of q, k, v and o (FCDP V-D).
    """
    require_positive("rank", rank)
    return 4 * 2 * rank * shape.hidden


def logit_bytes(precision: Precision) -> int:
    """Return the bytes of one number that the head yields, as transformers' causal models keep it.

    They keep itself, its shifted copy, its log-probability, and two gradients.
    """
    return 5 * precision.itemsize


def logits_numel(sequence: int, vocabulary: int = GPT_VOCABULARY) -> int:
    """Return how many numbers the head yields for a sample."""
    return sequence * vocabulary


def _layers(shape: GptShape, sequence: int) -> Iterator[Layer]:
    """Yield the layers; the head multiplies by the embedding's weights, so it has but its normalisation."""
    hidden = shape.hidden
    tables = (("wte", shape.vocabulary), ("wpe", shape.positions))
    weights = tuple((f"{name}.weight", (rows, hidden)) for name, rows in tables)
    yield Layer(name="embeddings", parameters=weights, flops_per_sample=0)
    for index in range(shape.num_layers):
        yield _block(f"h.{index}", hidden, sequence)
    yield Layer(
        name="head",
        parameters=tuple(_pair("ln_f", (hidden,), hidden)),
        flops_per_sample=2 * sequence * hidden * shape.vocabulary,
        saved_numel=2 * sequence * hidden,
    )


def _block(prefix: str, hidden: int, sequence: int) -> Layer:
    """Return a block: 16 sh kept numbers and 2 sh dropout decisions, 34 sh bytes in fp16.

    Its products are 12 h^2 and those of attention.
    """
    parameters = (
        *_pair(f"{prefix}.ln_1", (hidden,), hidden),
        *_pair(f"{prefix}.attn.c_attn", (hidden, 3 * hidden), 3 * hidden),
        *_pair(f"{prefix}.attn.c_proj", (hidden, hidden), hidden),
        *_pair(f"{prefix}.ln_2", (hidden,), hidden),
        *_pair(f"{prefix}.mlp.c_fc", (hidden, 4 * hidden), 4 * hidden),
        *_pair(f"{prefix}.mlp.c_proj", (4 * hidden, hidden), hidden),
    )
    numel = sequence * hidden
    return Layer(
        name=prefix,
        parameters=parameters,
        flops_per_sample=2 * 12 * numel * hidden + 2 * 2 * sequence * numel,
        saved_numel=16 * numel,
        mask_numel=2 * numel,
    )


def _pair(prefix: str, weight: tuple[int, ...], num_biases: int) -> Iterator[NamedShape]:
    yield f"{prefix}.weight", weight
    yield f"{prefix}.bias", (num_biases,)
