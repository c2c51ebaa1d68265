# Pure: no MPI, threads, clock or environment.
"""Models by the config.json that Hugging Face's transformers write, counted without transformers.

Sizes must be in the file. A switch that it leaves out (a bias, a tied head) is as transformers has it by default. BERT
is its body with the pooler, as `models.bert_large` is; every other type has its language head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from coarse.errors import ConfigError
from coarse.hardware.decoder import Activation, DecoderShape, Experts, Norm, decoder
from coarse.hardware.models import BertShape, Model, bert


@dataclass(frozen=True)
class ConfigText:
    """Configuration: its entries, and the file that errors name."""

    entries: Mapping[str, object]
    where: str

    def count(self, key: str) -> int:
        """Return a whole number of at least 1."""
        found = self.entries.get(key)
        if found is None:
            raise ConfigError(f"{self.where}: {key!r} is missing; set it, since it says the model's shape", key=key)
        if type(found) is not int or found < 1:
            raise ConfigError(
                f"{self.where}: {key!r} must be a whole number of at least 1, got {found!r}; correct it", key=key
            )
        return found

    def count_or(self, key: str, default: int) -> int:
        """Return a whole number of at least 1, or another number if the key is absent or null."""
        return default if self.entries.get(key) is None else self.count(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; an absent key is as transformers have it."""
        found = self.entries.get(key, default)
        if not isinstance(found, bool):
            raise ConfigError(f"{self.where}: {key!r} must be true or false, got {found!r}; correct it", key=key)
        return found

    def is_above_0(self, *keys: str) -> bool:
        """Return whether one of some numbers is above 0, as a probability of dropout is by default."""
        found = [self.entries.get(key, 0.1) for key in keys]
        return any(isinstance(value, int | float) and value > 0 for value in found)

    def activation(self, key: str, default: str) -> Activation:
        """Return the kind of an activation by its name."""
        return Activation.RELU if str(self.entries.get(key, default)).startswith("relu") else Activation.SMOOTH

    def head_width(self, hidden: int, num_heads: int) -> int:
        """Return the width of a head as stated, or the model's width over its heads."""
        if self.entries.get("head_dim") is None and hidden % num_heads:
            raise ConfigError(
                f"{self.where}: the width must be a multiple of the heads, got {hidden} and {num_heads}; correct one",
                key="num_attention_heads",
            )
        return self.count_or("head_dim", hidden // num_heads)


def _gpt2(config: ConfigText) -> DecoderShape:
    hidden, num_heads = config.count("n_embd"), config.count("n_head")
    positions = config.count("n_positions")
    return DecoderShape(
        num_layers=config.count("n_layer"), hidden=hidden, num_heads=num_heads, num_key_value_heads=num_heads,
        head_width=config.head_width(hidden, num_heads), intermediate=config.count_or("n_inner", 4 * hidden),
        vocabulary=config.count("vocab_size"), positions=positions, num_position_rows=positions, is_qkv_fused=True,
        activation=config.activation("activation_function", "gelu_new"),
        has_dropout=config.is_above_0("resid_pdrop"), has_own_head=not config.flag("tie_word_embeddings", True),
    )  # fmt: skip


_OPT_OFFSET = 2
"""Number of rows that OPT's table of positions has beyond the positions."""


def _opt(config: ConfigText) -> DecoderShape:
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    positions, bias = config.count("max_position_embeddings"), config.flag("enable_bias", True)
    is_before, is_removed = config.flag("do_layer_norm_before", True), config.flag("_remove_final_layer_norm", False)
    return DecoderShape(
        num_layers=config.count("num_hidden_layers"), hidden=hidden, num_heads=num_heads, num_key_value_heads=num_heads,
        head_width=config.head_width(hidden, num_heads), intermediate=config.count("ffn_dim"),
        vocabulary=config.count("vocab_size"), positions=positions, num_position_rows=positions + _OPT_OFFSET,
        embedding_width=config.count_or("word_embed_proj_dim", hidden),
        activation=config.activation("activation_function", "relu"), has_final_norm=is_before and not is_removed,
        norm=Norm.LAYER if config.flag("layer_norm_elementwise_affine", True) else Norm.PLAIN,
        has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=bias, has_dropout=config.is_above_0("dropout"),
        has_own_head=not config.flag("tie_word_embeddings", True),
    )  # fmt: skip


def _gpt_neox(config: ConfigText) -> DecoderShape:
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    bias = config.flag("attention_bias", True)
    return DecoderShape(
        num_layers=config.count("num_hidden_layers"), hidden=hidden, num_heads=num_heads, num_key_value_heads=num_heads,
        head_width=config.head_width(hidden, num_heads), intermediate=config.count("intermediate_size"),
        vocabulary=config.count("vocab_size"), positions=config.count("max_position_embeddings"), is_qkv_fused=True,
        activation=config.activation("hidden_act", "gelu"), has_qkv_bias=bias, has_out_bias=bias,
        has_dropout="hidden_dropout" in config.entries and config.is_above_0("hidden_dropout"),
        has_own_head=not config.flag("tie_word_embeddings", False),
    )  # fmt: skip


def _gated(
    config: ConfigText, *, has_qkv_bias: bool, has_out_bias: bool, has_mlp_bias: bool, window: int,
    key_value_heads: int | None = None, has_head_norms: bool = False, default_head_width: int = 0,
) -> DecoderShape:
    """Return a shape of Llama's family.

    It has rotary positions, RMS normalisation, a gate, and fewer heads for keys and values than for queries.
    `key_value_heads` is for a file that says nothing of them, if these are not the heads; null says that they are. With
    `has_head_norms` each head's queries and keys are normalised.
    """
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_width = config.count_or("head_dim", default_head_width) if default_head_width else 0
    head_width = head_width or config.head_width(hidden, num_heads)
    return DecoderShape(
        num_layers=config.count("num_hidden_layers"), hidden=hidden, num_heads=num_heads,
        num_key_value_heads=(
            config.count_or("num_key_value_heads", num_heads)
            if key_value_heads is None or "num_key_value_heads" in config.entries
            else key_value_heads
        ),
        head_width=head_width, intermediate=config.count("intermediate_size"),
        query_key_norms=(head_width, head_width) if has_head_norms else (0, 0),
        vocabulary=config.count("vocab_size"), positions=config.count("max_position_embeddings"),
        activation=Activation.GATED, norm=Norm.RMS, has_dropout=False, has_qkv_bias=has_qkv_bias,
        has_out_bias=has_out_bias, has_mlp_bias=has_mlp_bias, window=window,
        has_own_head=not config.flag("tie_word_embeddings", False),
    )  # fmt: skip


def _llama(config: ConfigText) -> DecoderShape:
    bias = config.flag("attention_bias", False)
    return _gated(
        config, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=config.flag("mlp_bias", False), window=0
    )


_MISTRAL_WINDOW = 4096
"""Window for a file that says nothing of it; null says that there is none."""


def _mistral(config: ConfigText) -> DecoderShape:
    window = config.count_or("sliding_window", 0) if "sliding_window" in config.entries else _MISTRAL_WINDOW
    return _gated(
        config, has_qkv_bias=False, has_out_bias=False, has_mlp_bias=False, window=window, key_value_heads=8
    )  # fmt: skip


def _qwen2(config: ConfigText) -> DecoderShape:
    _without_windows_of_some(config)
    return _gated(config, has_qkv_bias=True, has_out_bias=False, has_mlp_bias=False, window=0, key_value_heads=32)


def _without_windows_of_some(config: ConfigText) -> None:
    if config.flag("use_sliding_window", False):
        raise ConfigError(
            f"{config.where}: windows of some layers alone (use_sliding_window) are not counted; set it to false, or "
            "name a function that returns the model",
            key="use_sliding_window",
        )


_QWEN3_HEAD_WIDTH = 128
"""Width of a head for a file that says nothing of it."""


def _qwen3(config: ConfigText) -> DecoderShape:
    _without_windows_of_some(config)
    bias = config.flag("attention_bias", False)
    return _gated(
        config, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=False, window=0, key_value_heads=32,
        has_head_norms=True, default_head_width=_QWEN3_HEAD_WIDTH,
    )  # fmt: skip


def _mixtral(config: ConfigText) -> DecoderShape:
    window = config.count_or("sliding_window", 0)
    found = _gated(
        config, has_qkv_bias=False, has_out_bias=False, has_mlp_bias=False, window=window, key_value_heads=8
    )
    return replace(found, experts=_experts(config, "num_local_experts"))


def _olmoe(config: ConfigText) -> DecoderShape:
    bias = config.flag("attention_bias", False)
    found = _gated(config, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=False, window=0)
    return replace(
        found, experts=_experts(config, "num_experts"), query_key_norms=(found.query_width, found.key_width)
    )


def _qwen2_moe(config: ConfigText) -> DecoderShape:
    _without_windows_of_some(config)
    found = _gated(
        config, has_qkv_bias=config.flag("qkv_bias", True), has_out_bias=False, has_mlp_bias=False, window=0,
        key_value_heads=16,
    )  # fmt: skip
    shared = config.count("shared_expert_intermediate_size")
    return replace(
        found, experts=_experts(config, "num_experts", shared), intermediate=config.count("moe_intermediate_size")
    )


def _qwen3_moe(config: ConfigText) -> DecoderShape:
    _without_windows_of_some(config)
    bias = config.flag("attention_bias", False)
    found = _gated(
        config, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=False, window=0, key_value_heads=4,
        has_head_norms=True,
    )  # fmt: skip
    return replace(
        found, experts=_experts(config, "num_experts"), intermediate=config.count("moe_intermediate_size")
    )


def _experts(config: ConfigText, key: str, shared_width: int = 0) -> Experts:
    """Return the experts of all blocks.

    Raises:
        ConfigError: some blocks have none, or a token goes through more than there are.
    """
    if config.count_or("decoder_sparse_step", 1) != 1 or config.entries.get("mlp_only_layers"):
        raise ConfigError(
            f"{config.where}: blocks without experts beside others (decoder_sparse_step, mlp_only_layers) are not "
            "counted; name a function that returns the model",
            key="decoder_sparse_step",
        )
    found = Experts(
        count=config.count(key), per_token=config.count("num_experts_per_tok"), shared_width=shared_width
    )
    if found.per_token > found.count:
        raise ConfigError(
            f"{config.where}: a token cannot go through {found.per_token} of {found.count} experts; correct "
            "'num_experts_per_tok'",
            key="num_experts_per_tok",
        )
    return found


_DECODERS: dict[str, Callable[[ConfigText], DecoderShape]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt_neox": _gpt_neox,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
}
MODEL_TYPES = ("bert", *_DECODERS)
"""Types that `model_of_config` counts."""


def model_of_config(entries: Mapping[str, object], where: str, name: str, sequence: int) -> Model:
    """Return the model of a configuration of one of MODEL_TYPES, under a name.

    It takes sequences of so many tokens.

    Raises:
        ConfigError: a size that is missing or wrong, or a part that is not counted; it names the file and the key.
    """
    config = ConfigText(entries, where)
    if config.flag("add_cross_attention", False):
        raise ConfigError(
            f"{where}: cross attention (add_cross_attention) is not counted; name a function that returns the model",
            key="add_cross_attention",
        )
    if entries["model_type"] == "bert":
        hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
        config.head_width(hidden, num_heads)
        shape = BertShape(
            num_layers=config.count("num_hidden_layers"), hidden=hidden, num_heads=num_heads,
            intermediate=config.count("intermediate_size"), vocabulary=config.count("vocab_size"),
            positions=config.count("max_position_embeddings"), num_types=config.count("type_vocab_size"),
        )  # fmt: skip
        return bert(shape, name, sequence)
    return decoder(_DECODERS[str(entries["model_type"])](config), name, sequence)
