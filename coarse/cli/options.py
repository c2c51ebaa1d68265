"""Options that several commands have: fields of a dataclass on a command line, and what commands alone ask."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.presets import preset_names
from coarse.protocol.fields import Option, options_of

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

Asked = Mapping[str, Any]
"""Fields of a dataclass that a command line states; the others have their defaults."""
T = TypeVar("T")
M = TypeVar("M")
Choice = TypeVar("Choice", bound=StrEnum)


def with_options(
    kind: type,
    *,
    without: Collection[str] = (),
    optional: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
    helps: Mapping[str, str] | None = None,
    are_last: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass that says something.

    The command has a parameter `asked` in place of them, by the names of the fields; an option that may be left out
    and was is not in it.

    Args:
        kind: The dataclass.
        without: Keys of options that the command does not have.
        optional: Keys that have no default here.
        defaults: By key, instead of the dataclass's.
        helps: By key, instead of what the dataclass says.
        are_last: Show them after the command's own options.
    """
    options = [each for each in options_of(kind).values() if each.says is not None and each.key not in without]
    options.sort(key=lambda option: option.key not in ("machine", "model"))

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:  # noqa: ANN401
            stated = {option.name: given.pop(option.key) for option in options}
            command(**given, asked={name: value for name, value in stated.items() if value is not None})

        signature = inspect.signature(command)
        first, others = _with_context(signature)
        made = [_parameter(option, option.key in optional, defaults or {}, helps or {}) for option in options]
        every = [*first, *others, *made] if are_last else [*first, *made, *others]
        called.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return called

    return decorated


def _with_context(signature: inspect.Signature) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the context of a command, if it has one, and its own options; all are given by name."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "asked"
    ]
    return [each for each in own if each.annotation is typer.Context], [
        each for each in own if each.annotation is not typer.Context
    ]


def _parameter(
    option: Option, is_optional: bool, defaults: Mapping[str, object], helps: Mapping[str, str]
) -> inspect.Parameter:
    assert option.says is not None
    is_list = option.kind is tuple
    default = None if is_optional or is_list else defaults.get(option.key, option.default)
    kind = list[str] if is_list else option.kind
    flags = (option.says.flag,) if option.says.flag else ()
    stated = typer.Option(*flags, help=helps.get(option.key, option.says.help))
    return inspect.Parameter(
        option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, stated],
    )


def stated_keys(context: typer.Context) -> set[str]:
    """Return the parameters that the command line states itself."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def one_of(key: str, value: str, choices: type[Choice]) -> Choice:
    """Return the member of an enumeration that an option names."""
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"--{key} must be one of {names}, got {value!r}", key=key) from None


def require_seed(*, has_seed: bool, has_jitter: bool) -> None:
    """Refuse a seed where nothing is drawn."""
    if has_seed and not has_jitter:
        raise ConfigError("--seed means nothing without --jitter; leave it out, or write --jitter 0.1", key="seed")


def of_possible_modes(
    modes: Iterable[M], of_mode: Callable[[M], T], *, must_have: bool, on_left_out: Callable[[str], None]
) -> list[T]:
    """What `of_mode` gives for each mode that is possible, in order; `on_left_out` gets a line on each other.

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
