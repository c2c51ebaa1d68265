# Pure: no MPI, threads, clock or environment.
"""Language models of decoder blocks, from GPT-2's to Llama's: two layers for each block.

A block has an attention and a feed-forward layer. A layer keeps the numbers of `models`, [Note: saved for backward],
with an attention kernel that keeps no scores. Beyond GPT's block: RMS normalisation keeps as much as a layer
normalisation; ReLU keeps its outcome alone; a gated feed-forward layer keeps the gate, the gated vector and their
product, and separate kernels the gate's activation too. The head keeps the logits' probabilities for the loss, and
separate kernels the logits.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.models import Layer, Model, NamedShape
from coarse.hardware.quantities import require_positive


class Activation(enum.Enum):
    """Activation of the feed-forward layer: inner vectors that fused kernels keep, and others.

    The second number counts those that separate kernels keep beyond the first.
    """

    RELU = (1, 0)
    SMOOTH = (2, 2)
    """Activation by GELU or SiLU."""
    GATED = (3, 1)


class Norm(enum.IntEnum):
    """Normalisation, as the number of vectors that it learns."""

    PLAIN = 0
    RMS = 1
    LAYER = 2


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Mixture of experts in place of a feed-forward layer; a router sends each token to some of them.

    Experts are gated.
    """

    count: int
    per_token: int
    """Experts that a token goes through; so many counts of its FLOPs, for all routes."""
    shared_width: int = 0
    """Inner numbers of one more that all tokens go through, behind a gate of its own; 0: none."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Depth and width of a decoder, and the switches that differ between the families."""

    num_layers: int
    hidden: int
    num_heads: int
    num_key_value_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    positions: int
    """Tokens of the longest sequence."""
    num_position_rows: int = 0
    """Rows of a learned table of positions; 0 if positions are rotated into queries and keys."""
    embedding_width: int = 0
    """Width of a token's embedding; 0: as wide as the model. Two matrices lead from one width to the other
    (opt-350m)."""
    activation: Activation = Activation.SMOOTH
    norm: Norm = Norm.LAYER
    has_final_norm: bool = True
    is_qkv_fused: bool = False
    """True if queries, keys and values come from one matrix."""
    has_qkv_bias: bool = True
    has_out_bias: bool = True
    has_mlp_bias: bool = True
    has_dropout: bool = True
    """True if dropout follows embeddings, attention and feed-forward layers."""
    has_own_head: bool = False
    """True if the head has a matrix of its own; else it multiplies by the tokens' table."""
    query_key_norms: tuple[int, int] = (0, 0)
    """Numbers by which queries and keys are normalised; 0: they are not."""
    experts: Experts | None = None
    """Experts of all blocks; `intermediate` is then an expert's."""
    window: int = 0
    """Most tokens that one attends to; 0: all of the sequence."""

    def __post_init__(self) -> None:
        for key in (
            *("num_layers", "hidden", "num_heads", "num_key_value_heads", "head_width", "intermediate"),
            *("vocabulary", "positions"),
        ):
            require_positive(key, getattr(self, key))

    @property
    def token_width(self) -> int:
        """Width of the tokens' table."""
        return self.embedding_width or self.hidden

    @property
    def query_width(self) -> int:
        """Numbers of all heads' queries."""
        return self.num_heads * self.head_width

    @property
    def key_width(self) -> int:
        """Numbers of all keys; values have as many."""
        return self.num_key_value_heads * self.head_width


def decoder(shape: DecoderShape, name: str, sequence: int) -> Model:
    """Return a decoder of a shape on sequences of so many tokens, under a name."""
    if not 1 <= sequence <= shape.positions:
        raise ConfigError(
            f"{name} takes sequences of 1 to {shape.positions} tokens, got {sequence}; set --sequence", key="sequence"
        )
    return Model(name=name, sample=f"sequence of {sequence} tokens", layers=tuple(_layers(shape, sequence)))


def _layers(shape: DecoderShape, sequence: int) -> Iterator[Layer]:
    hidden, width = shape.hidden, shape.token_width
    weights: list[NamedShape] = [("embeddings.tokens.weight", (shape.vocabulary, width))]
    if shape.num_position_rows:
        weights.append(("embeddings.positions.weight", (shape.num_position_rows, hidden)))
    projection = 0 if width == hidden else 2 * sequence * width * hidden
    if projection:
        weights.append(("embeddings.project_in.weight", (hidden, width)))
    yield Layer(
        name="embeddings",
        parameters=tuple(weights),
        flops_per_sample=projection,
        saved_numel=sequence * width if projection else 0,
        mask_numel=sequence * hidden if shape.has_dropout else 0,
    )
    for index in range(shape.num_layers):
        yield _attention(f"layers.{index}", shape, sequence)
        yield (_mixture if shape.experts else _feed_forward)(f"layers.{index}", shape, sequence)
    yield _head(shape, sequence)


def _attention(prefix: str, shape: DecoderShape, sequence: int) -> Layer:
    """Return an attention layer, which keeps its input, that normalised, Q, K, V and the context."""
    hidden, query, key = shape.hidden, shape.query_width, shape.key_width
    bias = shape.has_qkv_bias
    if shape.is_qkv_fused:
        inputs = _linear(f"{prefix}.attention.qkv", hidden, query + 2 * key, bias)
    else:
        widths = (("q", query), ("k", key), ("v", key))
        inputs = tuple(p for name, to in widths for p in _linear(f"{prefix}.attention.{name}", hidden, to, bias))
    span = min(sequence, shape.window or sequence)
    return Layer(
        name=f"{prefix}.attention",
        parameters=(
            *_norm(f"{prefix}.attention.norm", shape),
            *inputs,
            *(
                (f"{prefix}.attention.{name}_norm.weight", (count,))
                for name, count in zip("qk", shape.query_key_norms, strict=True) if count
            ),
            *_linear(f"{prefix}.attention.out", query, hidden, shape.has_out_bias),
        ),
        flops_per_sample=2 * sequence * hidden * (2 * query + 2 * key) + 2 * 2 * sequence * span * query,
        saved_numel=sequence * (2 * hidden + 2 * query + 2 * key),
        mask_numel=sequence * hidden if shape.has_dropout else 0,
        unfused_numel=sequence * hidden,
    )


def _feed_forward(prefix: str, shape: DecoderShape, sequence: int) -> Layer:
    """Return a feed-forward layer, which keeps its input, that normalised, and the inner vectors."""
    hidden, inner, bias = shape.hidden, shape.intermediate, shape.has_mlp_bias
    kept, unfused = shape.activation.value
    ups = ("gate", "up") if shape.activation is Activation.GATED else ("up",)
    return Layer(
        name=f"{prefix}.feed_forward",
        parameters=(
            *_norm(f"{prefix}.feed_forward.norm", shape),
            *(p for name in ups for p in _linear(f"{prefix}.feed_forward.{name}", hidden, inner, bias)),
            *_linear(f"{prefix}.feed_forward.down", inner, hidden, bias),
        ),
        flops_per_sample=2 * (len(ups) + 1) * sequence * hidden * inner,
        saved_numel=sequence * (2 * hidden + kept * inner),
        mask_numel=sequence * hidden if shape.has_dropout else 0,
        unfused_numel=sequence * (hidden + unfused * inner),
    )


def _mixture(prefix: str, shape: DecoderShape, sequence: int) -> Layer:
    """Return a mixture of experts.

    It keeps its input, that normalised, the router's probabilities, and the inner vectors and the outcome of each
    expert that a token goes through: an assumption.
    """
    experts = shape.experts
    assert experts is not None
    hidden, inner, shared = shape.hidden, shape.intermediate, experts.shared_width
    kept, unfused = shape.activation.value
    of_shared: tuple[NamedShape, ...] = ()
    if shared:
        of_shared = (
            *(p for name in ("gate", "up") for p in _linear(f"{prefix}.shared.{name}", hidden, shared, False)),
            *_linear(f"{prefix}.shared.down", shared, hidden, False),
            *_linear(f"{prefix}.shared.weight", hidden, 1, False),
        )
    through = experts.per_token * inner + shared
    return Layer(
        name=f"{prefix}.experts",
        parameters=(
            *_norm(f"{prefix}.experts.norm", shape),
            *_linear(f"{prefix}.experts.router", hidden, experts.count, False),
            (f"{prefix}.experts.gate_up", (experts.count, 2 * inner, hidden)),
            (f"{prefix}.experts.down", (experts.count, hidden, inner)),
            *of_shared,
        ),
        flops_per_sample=2 * sequence * hidden * (3 * through + experts.count + bool(shared)),
        saved_numel=sequence * ((2 + experts.per_token + bool(shared)) * hidden + kept * through + experts.count),
        mask_numel=sequence * hidden if shape.has_dropout else 0,
        unfused_numel=sequence * (hidden + unfused * through),
    )


def _head(shape: DecoderShape, sequence: int) -> Layer:
    """Return the head, which keeps its input, that normalised, and the probabilities."""
    hidden, width, vocabulary = shape.hidden, shape.token_width, shape.vocabulary
    parameters = list(_norm("head.norm", shape)) if shape.has_final_norm else []
    projection = 0 if width == hidden else 2 * sequence * width * hidden
    if projection:
        parameters.append(("head.project_out.weight", (width, hidden)))
    if shape.has_own_head:
        parameters.append(("head.weight", (vocabulary, width)))
    return Layer(
        name="head",
        parameters=tuple(parameters),
        flops_per_sample=projection + 2 * sequence * width * vocabulary,
        saved_numel=sequence * (2 * hidden + vocabulary + (width if projection else 0)),
        unfused_numel=sequence * vocabulary,
    )


def _linear(prefix: str, inputs: int, outputs: int, has_bias: bool) -> tuple[NamedShape, ...]:
    weight = (f"{prefix}.weight", (outputs, inputs))
    return (weight, (f"{prefix}.bias", (outputs,))) if has_bias else (weight,)


def _norm(prefix: str, shape: DecoderShape) -> tuple[NamedShape, ...]:
    return tuple((f"{prefix}.{name}", (shape.hidden,)) for name in ("weight", "bias")[: shape.norm])
