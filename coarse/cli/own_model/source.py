"""Model that --model names: a Hugging Face config.json, a trace, or a function returning a torch module."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from coarse.cli.named_function import function_named
from coarse.cli.own_model.description import OwnModel
from coarse.cli.own_model.traces.file import SUFFIXES, json_of, trace_in
from coarse.errors import ConfigError
from coarse.hardware.model_config import MODEL_TYPES, model_of_config
from coarse.hardware.models import MODELS, Model
from coarse.protocol.fields import options_of
from coarse.simulation.question import Question

_COUNTED = (
    "parameters and FLOPs are counted from its sizes (derived), activations by what kernels usually keep (assumption)"
)
_OF_CONFIG = (
    "what depends on values, as the routes of a mixture of experts do, cannot run there: name a function that returns "
    "a model of as many FLOPs without it, or a trace"
)
"""Remedy for a model that transformers built and that does not run."""


def is_own(text: str) -> bool:
    """Return whether --model names a user's own model, and not one that is known by its name."""
    return text.endswith(SUFFIXES) or ":" in text or Path(text, "config.json").is_file()


def is_traced(text: str, step: int | None) -> bool:
    """Return whether --model names a file with a trace; `step` is the number of the step to predict."""
    return text.endswith(SUFFIXES) and Path(text).is_file() and _trace(Path(text), None, step) is not None


def own_model(text: str, sequence: int | None, step: int | None = None) -> OwnModel:
    """Return the model of a config.json, its folder, a trace or MODULE:FUNCTION.

    A sample has `sequence` tokens.

    `step` is the number of a trace's step; by default the median.

    Raises:
        ConfigError: what is none of these, what cannot be counted, or a sequence that is missing; with the remedy.
    """
    options_of(Question)["sequence"].check(sequence, "--sequence")
    if not is_own(text):
        raise ConfigError(
            f"unknown model {text!r}; there are {', '.join(MODELS)}, a config.json of Hugging Face, a trace of a "
            "training step (.json or .json.gz of torch.profiler, .et of Chakra), and MODULE:FUNCTION or "
            "FILE.py:FUNCTION that returns a torch module",
            key="model",
        )
    traced = _trace(Path(text), sequence, step) if text.endswith(SUFFIXES) else None
    if traced is not None:
        return traced
    if step is not None:
        raise ConfigError(f"--step is of a trace, and --model {text} is none; leave it out", key="step")
    if ":" in text and not text.endswith(".json"):
        found = _of_function(text, sequence)
    else:
        path = Path(text) if text.endswith(".json") else Path(text, "config.json")
        found = _of_config(path, sequence)
    if not found.model.flops_per_sample:
        raise ConfigError(
            f"--model {text}: its forward pass has no matrix product and no convolution, so that no "
            "work divides the seconds; name a model that computes",
            key="model",
        )
    return found


def _trace(path: Path, sequence: int | None, step: int | None) -> OwnModel | None:
    """Return the model of a trace file, or None if it is another JSON file."""
    stat = path.stat()
    found = trace_in(path, stat.st_mtime_ns, stat.st_size, step)
    if found is not None and sequence is not None:
        raise ConfigError(
            f"--sequence means nothing for the trace {path}, whose step had the samples that it had; leave it out",
            key="sequence",
        )
    if found is None and path.suffix != ".json":
        raise ConfigError(
            f"{path}: wanted a trace, an object with traceEvents; name one that torch.profiler's export_chrome_trace "
            "wrote",
            key="model",
        )
    return found


def _of_config(path: Path, sequence: int | None) -> OwnModel:
    entries = _entries(path)
    name, kind = path.stem if path.stem != "config" else path.resolve().parent.name, entries.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError(
            f"{path}: wanted the config.json of a Hugging Face model, which says its 'model_type', got {kind!r} there; "
            "name that file, a trace (an object with traceEvents), or a function that returns a torch module",
            key="model_type",
        )
    if kind in MODEL_TYPES:
        if sequence is None:
            raise _needs_sequence(str(path), f"a {kind} computes on tokens")
        model = model_of_config(entries, str(path), name, sequence)
        body = "its body with the pooler, no head; " if kind == "bert" else ""
        return OwnModel(model=model, notes=(_note(model, str(path), f"{body}{_COUNTED}"),))
    with _optional("transformers", f"{path}: model_type {kind!r} is not counted by coarse itself"):
        from coarse.cli.own_model.built import inputs_of, module_of
        from coarse.cli.own_model.traced import traced
    module = module_of(entries, str(path))
    inputs = inputs_of(module, str(path), sequence)
    found = traced(module, inputs, name=name, where=str(path), remedy=_OF_CONFIG)
    return found.with_first_note(_note(found.model, str(path), f"built by transformers as {type(module).__name__}"))


def _of_function(text: str, sequence: int | None) -> OwnModel:
    with _optional("torch", f"--model {text}"):
        from coarse.cli.own_model.traced import called, traced
    module, inputs = called(function_named(text, "model"), text, sequence)
    found = traced(module, inputs, name=text.rpartition(":")[2], where=text)
    return found.with_first_note(_note(found.model, text, f"a {type(module).__name__}"))


def _entries(path: Path) -> Mapping[str, object]:
    entries = json_of(path, "the config.json of a model")
    if not isinstance(entries, dict):
        raise ConfigError(
            f"{path}: wanted an object with a 'model_type', got {type(entries).__name__}; name the config.json of a "
            "model",
            key="model",
        )
    return entries


def _note(model: Model, where: str, how: str) -> str:
    return (
        f"Model {model.name} ({where}): {model.num_parameters:,} parameters, {model.flops_per_sample / 1e9:.4g} GFLOP "
        f"forward for a {model.sample}; {how}."
    )


def _needs_sequence(where: str, why: str) -> ConfigError:
    return ConfigError(f"{where}: {why}, and their number is not given; add --sequence, such as 512", key="sequence")


@contextmanager
def _optional(package: str, what: str) -> Iterator[None]:
    """Turn the absence of a package into a ConfigError with the remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what}, so this needs {error.name or package}: pip install torch transformers, or name one of the types "
            f"{', '.join(MODEL_TYPES)}",
            key="model",
        ) from error
