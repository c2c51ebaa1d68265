"""Question-answering models of transformers from a configuration, and LoRA on their attention.

transformers and peft are imported in here by the functions: ranks that are memory devices do without them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from experiments.finetuning.features import Features
from experiments.finetuning.tokenizer import CLASSIFIER_ID, PADDING_ID, SEPARATOR_ID

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("gpt2", "opt", "bert")


@dataclass(frozen=True)
class Size:
    """Layers, width and heads; perceptrons are four times as wide."""

    layers: int
    width: int
    heads: int


SIZES = {
    "tiny": Size(layers=2, width=64, heads=2),
    "small": Size(layers=4, width=256, heads=4),
    "base": Size(layers=12, width=768, heads=12),  # GPT-2's smallest, OPT-125M, BERT-base
    "large": Size(layers=24, width=1024, heads=16),  # GPT-2 medium, BERT-large, about OPT-350M
}

LORA_TARGETS = {
    "gpt2": ("attn.c_attn", "attn.c_proj"),  # c_attn is q, k and v in one
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "bert": ("query", "key", "value", "attention.output.dense"),
}
"""What each family calls q, k, v and o."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA's rank r and its scale alpha (Hu et al., 2021, section 4.1)."""

    rank: int = 8
    alpha: int = 16

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if getattr(self, name) < 1:
                raise ValueError(f"Lora.{name} must be at least 1, got {getattr(self, name)}")


def question_answering_model(
    family: str, size: str, *, num_tokens: int, length: int, lora: Lora | None = None
) -> nn.Module:
    """A model with random weights by torch's generator, without dropout so that all modes train alike.

    Args:
        family: one of FAMILIES.
        size: a name of SIZES.
        num_tokens: the vocabulary.
        length: the longest row in tokens.
        lora: freezes all but adapters of q, k, v and o and the head; None trains everything.

    Its call takes what `inputs_of` and `labels_of` make of features, and returns start_logits and end_logits, each
    (n, length) float32, and with labels the mean of both cross entropies as `loss`.
    """
    if family not in FAMILIES:
        raise ValueError(f"a family is one of {', '.join(FAMILIES)}, got {family!r}")
    if size not in SIZES:
        raise ValueError(f"a size is one of {', '.join(SIZES)}, got {size!r}")
    model = _from_configuration(family, SIZES[size], num_tokens, length)
    return model if lora is None else _with_lora(model, family, lora)


def inputs_of(family: str, features: Features) -> dict[str, Tensor]:
    """The rows under the names of a family; BERT alone is told which tokens are the context's."""
    inputs = {"input_ids": features.token_ids, "attention_mask": features.mask}
    if family == "bert":
        inputs["token_type_ids"] = features.types
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def labels_of(features: Features) -> dict[str, Tensor]:
    """Where the rows' answers begin and end."""
    return {
        "start_positions": torch.from_numpy(features.starts),
        "end_positions": torch.from_numpy(features.ends),
    }


def num_parameters(model: nn.Module, *, trainable_only: bool = False) -> int:
    """How many numbers the model has, or learns; before it is sharded."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad or not trainable_only)


def _from_configuration(family: str, size: Size, num_tokens: int, length: int) -> nn.Module:
    from transformers import BertForQuestionAnswering, GPT2ForQuestionAnswering, OPTForQuestionAnswering

    special = {"pad_token_id": PADDING_ID, "bos_token_id": CLASSIFIER_ID, "eos_token_id": SEPARATOR_ID}
    kind = {
        "gpt2": GPT2ForQuestionAnswering,
        "opt": OPTForQuestionAnswering,
        "bert": BertForQuestionAnswering,
    }[family]
    return kind(_configuration(family, size, num_tokens, length, special))


def _configuration(family: str, size: Size, num_tokens: int, length: int, special: dict[str, int]) -> PretrainedConfig:
    """The family's configuration, each with names of its own for the same numbers."""
    from transformers import BertConfig, GPT2Config, OPTConfig

    if family == "gpt2":
        return GPT2Config(
            vocab_size=num_tokens, n_positions=length, n_embd=size.width, n_layer=size.layers, n_head=size.heads,
            n_inner=4 * size.width, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, use_cache=False, **special,
        )  # fmt: skip
    shared = {
        "vocab_size": num_tokens, "max_position_embeddings": length, "hidden_size": size.width,
        "num_hidden_layers": size.layers, "num_attention_heads": size.heads, "use_cache": False, **special,
    }  # fmt: skip
    if family == "opt":
        return OPTConfig(
            ffn_dim=4 * size.width, word_embed_proj_dim=size.width, dropout=0.0, attention_dropout=0.0, **shared
        )
    return BertConfig(
        intermediate_size=4 * size.width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shared
    )


def _with_lora(model: nn.Module, family: str, lora: Lora) -> nn.Module:
    """The model frozen, with adapters and a head that learn."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=list(LORA_TARGETS[family]),
        modules_to_save=["qa_outputs"],  # peft's task type for questions would too, but loses BERT's token types
        fan_in_fan_out=family == "gpt2",  # its Conv1D keeps weights as (inputs, outputs)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return get_peft_model(model, settings)
