"""Models of any type that transformers know, built from a configuration on torch's meta device."""

from collections.abc import Mapping

import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from coarse.cli.own_model.traced import META, Inputs, tokens
from coarse.errors import ConfigError


def module_of(entries: Mapping[str, object], where: str) -> nn.Module:
    """Return the model that "architectures" names, or one with its type's language head, or its body.

    Raises:
        ConfigError: a model_type that transformers don't know, or entries that they refuse.
    """
    transformers.logging.set_verbosity_error()  # its warnings are of generating text, and nothing is generated
    settings = {key: value for key, value in entries.items() if key != "model_type"}
    try:
        config = transformers.AutoConfig.for_model(str(entries["model_type"]), **settings)
        named = entries.get("architectures")
        known = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
        with META:
            if known is not None:
                module: nn.Module = known(config)
            elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
                module = transformers.AutoModelForCausalLM.from_config(config)
            else:
                module = transformers.AutoModel.from_config(config)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{where}: transformers {transformers.__version__} cannot build model_type {entries['model_type']!r}: "
            f"{reason[:200]}; correct the file, or name a function that returns the model",
            key="model_type",
        ) from error
    config.pad_token_id = None  # else forward looks for padding among the tokens' values, and there are none
    return module


def inputs_of(module: nn.Module, where: str, sequence: int | None) -> Inputs:
    """Return one sample of the model's input: tokens (with labels if it has a language head) or pixels.

    Raises:
        ConfigError: tokens without --sequence, pixels with it, or a model that reads something else.
    """
    config, kind = module.config, str(getattr(module, "main_input_name", ""))
    if kind == "input_ids":
        if sequence is None:
            raise ConfigError(
                f"{where}: the model computes on tokens, and their number is not given; add --sequence, such as 512",
                key="sequence",
            )
        others: dict[str, torch.Tensor] = {}
        ids = torch.empty((1, sequence), dtype=torch.int64, device=META)
        if getattr(config, "is_encoder_decoder", False):
            others["decoder_input_ids"] = ids
        if type(module).__name__.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
            others["labels"] = ids
        return tokens(sequence, **others)
    side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if kind != "pixel_values" or not isinstance(side, int):
        raise ConfigError(
            f"{where}: coarse makes inputs of tokens and of square images, and {type(module).__name__} reads "
            f"{kind or 'something else'}; name a function that returns (module, inputs)",
            key="model",
        )
    if sequence is not None:
        raise ConfigError(
            f"{where}: {type(module).__name__} reads images, not tokens; leave --sequence out", key="sequence"
        )
    images = torch.empty((1, channels, side, side), device=META)
    return Inputs(args=(images,), sample=f"{side} x {side} image")
