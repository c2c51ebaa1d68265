"""Models by the config.json of Hugging Face, held against published counts and against the built-in models."""

import pytest

from coarse.errors import ConfigError
from coarse.hardware.gpt import gpt
from coarse.hardware.model_config import MODEL_TYPES, model_of_config
from coarse.hardware.models import Kernels, Precision, bert_large

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def sized(model_type, *sizes, **others):
    """A configuration of the usual names."""
    return {"model_type": model_type, "max_position_embeddings": 2048, **dict(zip(SIZES, sizes, strict=True)), **others}


GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
BERT_LARGE = sized("bert", 1024, 24, 16, 4096, 30522, max_position_embeddings=512, type_vocab_size=2)
OPT_350M = sized("opt", 1024, 24, 16, 0, 50272, ffn_dim=4096, word_embed_proj_dim=512, do_layer_norm_before=False)
PUBLISHED = {
    "gpt2": (GPT2, 124_439_808),
    "bert-large": (BERT_LARGE, 335_141_888),
    "opt-125m": (sized("opt", 768, 12, 12, 0, 50272, ffn_dim=3072), 125_239_296),
    "opt-350m": (OPT_350M, 331_196_416),
    "llama-2-7b": (sized("llama", 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "mistral-7b": (sized("mistral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8), 7_241_732_096),
    "qwen2-0.5b": (
        sized("qwen2", 896, 24, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True), 494_032_768,
    ),
    "pythia-70m": (sized("gpt_neox", 512, 6, 8, 2048, 50304), 70_426_624),
    "qwen3-0.6b": (
        sized("qwen3", 1024, 28, 16, 3072, 151936, num_key_value_heads=8, tie_word_embeddings=True), 596_049_920,
    ),
    "mixtral-8x7b": (
        sized("mixtral", 4096, 32, 32, 14336, 32000, num_local_experts=8, num_experts_per_tok=2), 46_702_792_704,
    ),
    "olmoe-1b-7b": (
        sized("olmoe", 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8), 6_919_161_856,
    ),
    "qwen1.5-moe-a2.7b": (
        sized(
            "qwen2_moe", 2048, 24, 16, 5632, 151936, num_key_value_heads=16, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        ), 14_315_784_192,
    ),
    "qwen3-30b-a3b": (
        sized(
            "qwen3_moe", 2048, 48, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768,
        ), 30_532_122_624,
    ),
}  # fmt: skip


def model(entries, sequence=128):
    return model_of_config(entries, "a/config.json", "mine", sequence)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_has_the_published_parameters(name):
    entries, published = PUBLISHED[name]
    assert model(entries).num_parameters == published


def test_every_type_is_held_against_a_published_model():
    assert {entries["model_type"] for entries, _ in PUBLISHED.values()} == set(MODEL_TYPES)


@pytest.mark.parametrize("sequence", [128, 384])
def test_a_configuration_of_bert_large_is_the_built_in_model(sequence):
    assert model(BERT_LARGE, sequence).layers == bert_large(sequence).layers


def test_a_configuration_of_gpt2_is_coarses_gpt_and_keeps_the_probabilities_of_its_logits_too():
    ours, known = model(GPT2, 512), gpt("12x768x12", 512)
    assert (ours.num_parameters, ours.flops_per_sample) == (known.num_parameters, known.flops_per_sample)
    ours_bytes, known_bytes = (one.activation_bytes_per_sample(Precision.FP16) for one in (ours, known))
    assert ours_bytes - known_bytes == 2 * 512 * 50257 + 512 * 768  # and dropout behind the embeddings


def test_a_tied_head_counts_once_and_computes_all_the_same():
    tied, untied = model(GPT2), model({**GPT2, "tie_word_embeddings": False})
    assert untied.num_parameters - tied.num_parameters == 50257 * 768
    assert untied.flops_per_sample == tied.flops_per_sample


def test_a_window_bounds_what_attention_multiplies():
    entries = PUBLISHED["mistral-7b"][0]
    windowed, full = (model({**entries, "sliding_window": window}, 2048) for window in (512, None))
    assert full.flops_per_sample - windowed.flops_per_sample == 32 * 4 * 2048 * (2048 - 512) * 4096


@pytest.mark.parametrize(("model_type", "absent"), [("mistral", 8), ("qwen2", 32), ("llama", 64)])
def test_heads_of_keys_and_values_are_transformers_own_where_a_file_leaves_them_out_and_all_where_it_says_null(
    model_type, absent
):
    entries = sized(model_type, 4096, 2, 64, 14336, 32000)
    assert model(entries).num_parameters == model({**entries, "num_key_value_heads": absent}).num_parameters
    null, every = (model({**entries, "num_key_value_heads": value}) for value in (None, 64))
    assert null.num_parameters == every.num_parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_separate_kernels_never_keep_less_than_fused_ones(name):
    for layer in model(PUBLISHED[name][0]).layers:
        separate = layer.activation_bytes_per_sample(Precision.FP32, Kernels.SEPARATE)
        assert separate >= layer.activation_bytes_per_sample(Precision.FP32, Kernels.FUSED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_head": None}, "'n_head' is missing"),
        ({"n_head": 7}, "multiple of the heads, got 768 and 7"),
        ({"n_layer": 0}, "at least 1, got 0"),
        ({"n_layer": "12"}, "at least 1, got '12'"),
        ({"n_layer": True}, "at least 1, got True"),
        ({"tie_word_embeddings": 1}, "true or false, got 1"),
        ({"add_cross_attention": True}, "cross attention"),
        ({"n_positions": 127}, "1 to 127 tokens, got 128; set --sequence"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_file_and_the_remedy(changes, words):
    with pytest.raises(ConfigError, match=words) as refused:
        model({**GPT2, **changes})
    assert "a/config.json" in str(refused.value) or "--sequence" in str(refused.value)


def test_a_token_goes_through_some_of_the_experts_and_all_of_them_are_held():
    entries, _ = PUBLISHED["mixtral-8x7b"]
    two, four = (model({**entries, "num_experts_per_tok": count}) for count in (2, 4))
    assert two.num_parameters == four.num_parameters
    one_expert = 2 * 128 * 3 * 4096 * 14336
    assert four.flops_per_sample - two.flops_per_sample == 32 * 2 * one_expert


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_experts_per_tok": None}, "'num_experts_per_tok' is missing"),
        ({"decoder_sparse_step": 2}, "blocks without experts"),
        ({"mlp_only_layers": [0]}, "blocks without experts"),
    ],
)
def test_a_mixture_that_cannot_be_counted_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        model({**PUBLISHED["mixtral-8x7b"][0], **changes})


def test_windows_of_some_layers_are_refused():
    with pytest.raises(ConfigError, match="use_sliding_window"):
        model({**PUBLISHED["qwen2-0.5b"][0], "use_sliding_window": True})
