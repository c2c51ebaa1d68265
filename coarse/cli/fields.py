"""Fields of a dataclass as options of a command."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from coarse.protocol.fields import Option, options_of

Asked = Mapping[str, Any]
"""Fields of a dataclass that a command line states. The others have their defaults."""


def with_options(
    kind: type,
    *,
    without: Collection[str] = (),
    optional: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
    helps: Mapping[str, str] | None = None,
    are_last: bool = False,
    into: str = "asked",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass that has a `says`.

    The command has one parameter, by default `asked`, in place of these options: a mapping by the names of the fields.
    An option that the command line leaves out is not in it if it has no default.

    Args:
        kind: The dataclass.
        without: Keys of options that the command does not have.
        optional: Keys that have no default here.
        defaults: Defaults by key, in place of the dataclass's.
        helps: Help texts by key, in place of the dataclass's.
        are_last: True to show the options after the command's own.
        into: Name of the parameter that receives the options; a command may have several such parameters.
    """
    options = [each for each in options_of(kind).values() if each.says is not None and each.key not in without]
    options.sort(key=lambda option: option.key not in ("machine", "model"))

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:  # noqa: ANN401
            stated = {option.name: given.pop(option.key) for option in options}
            command(**given, **{into: {name: value for name, value in stated.items() if value is not None}})

        signature = inspect.signature(command)
        first, others = _with_context(signature, into)
        made = [_parameter(option, option.key in optional, defaults or {}, helps or {}) for option in options]
        every = [*first, *others, *made] if are_last else [*first, *made, *others]
        called.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return called

    return decorated


def _with_context(
    signature: inspect.Signature, into: str
) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return a command's context, if it has one, and its own options; all are given by name."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != into
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
