"""Options that several commands have."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.presets import preset_names

Intervals = Annotated[
    list[str] | None,
    typer.Option(
        help="What an input may be instead, KEY=LOW:HIGH: compute, rates or latencies (factors on all of them), "
        "ring_slow_down, or a field of the machine's file."
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        help="Simulations under other inputs, beside the fast and the slow end, from which ranges are; 0: no ranges. "
        "By default 6; of coarse predict for up to 16 workers."
    ),
]
OWN_MODEL_HELP = (
    "a config.json of Hugging Face, MODULE:FUNCTION or FILE.py:FUNCTION that returns a torch module"
)
TRACE_HELP = "a trace of a training step (.json or .json.gz of torch.profiler or of coarse, .et of Chakra)"
MACHINE_HELP = f"A preset ({', '.join(preset_names())}), or the path of a machine file (.toml)."

T = TypeVar("T")
M = TypeVar("M")
Choice = TypeVar("Choice", bound=StrEnum)


def stated_keys(context: typer.Context) -> set[str]:
    """Return the parameters that the command line states itself."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def one_of(key: str, value: str, choices: type[Choice]) -> Choice:
    """Return the member of an enumeration that an option names, or raise ConfigError."""
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"--{key} must be one of {names}, got {value!r}", key=key) from None


def require_seed(*, has_seed: bool, has_jitter: bool) -> None:
    """Raise ConfigError for a seed without jitter, which alone draws numbers."""
    if has_seed and not has_jitter:
        raise ConfigError("--seed means nothing without --jitter; leave it out, or write --jitter 0.1", key="seed")


def of_possible_modes(
    modes: Iterable[M], of_mode: Callable[[M], T], *, must_have: bool, on_left_out: Callable[[str], None]
) -> list[T]:
    """Return what `of_mode` returns for each possible mode, in order; tell `on_left_out` of each other.

    Raises:
        ConfigError, CapacityError: why a mode is impossible, where they `must_have` been possible or none is.
    """
    found: list[T] = []
    refusal: Exception | None = None
    for mode in modes:
        try:
            found.append(of_mode(mode))
        except (ConfigError, CapacityError) as error:
            if must_have:
                raise type(error)(f"mode {mode}: {error}") from None
            refusal = error
            on_left_out(f"Left out {mode}: {error}.")
    if not found:
        raise ConfigError(f"no mode can run: {refusal}")
    return found
