# Pure: no MPI, threads, clock or environment.
"""Options as annotated fields of frozen dataclasses, shared by commands, files, sweeps, JSON and docs.

For example: `num_sync_groups: Annotated[int, Says("Groups that shards are dealt to.", low=1)] = 2`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from coarse.errors import ConfigError
from coarse.protocol.toml import KeyPath, Where, refuse_unknown_keys

Kind = TypeVar("Kind")
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text that is not empty"}


@dataclass(frozen=True, slots=True)
class Says:
    """Facts of one option in addition to its type and default."""

    help: str
    """Text for commands and pages."""
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    wanted: str = ""
    """Value that errors ask for, where type, limits and choices do not say it."""
    key: str = ""
    """Name in sweeps and records as users write it; by default the field's."""
    flag: str = ""
    """Name on a command line; by default the key's, as "--profile-every"."""
    is_swept: bool = True
    """True if a sweep may vary it."""


@dataclass(frozen=True, slots=True)
class Option:
    """Option: one field of a dataclass of options."""

    name: str
    kind: Any
    """Type of the option without None, or a tuple of types; `tuple` for a list."""
    item: Any
    """Type of the elements of a list."""
    may_be_none: bool
    default: object
    """Default value; MISSING where the option must be given."""
    says: Says | None
    """Facts of the option; None for a field that is not checked."""

    @property
    def key(self) -> str:
        """Name in sweeps and records as users write it."""
        return (self.says and self.says.key) or self.name

    @property
    def flag(self) -> str:
        """Name on a command line."""
        return (self.says and self.says.flag) or f"--{self.key.replace('_', '-')}"

    @property
    def wanted(self) -> str:
        """Text of what a value must be, except for limits on both sides."""
        assert self.says is not None
        if self.says.wanted:
            return self.says.wanted
        if is_dataclass(self.kind):
            return f"{getattr(self.kind, '__name__', '')}(...), in a file the table [{self.name}]"
        if self.says.choices:
            return f"one of {', '.join(self.says.choices)}"
        name = _TYPE_NAMES.get(self.kind, "another value")
        has_one_end = -math.inf < self.says.low and self.says.high == math.inf
        return f"{name} of at least {self.says.low:g}" if has_one_end else name

    def check(self, value: object, name: str = "") -> None:
        """Refuse a value of another type, outside its limits or not of its choices.

        Args:
            value: The value in the form that the field takes.
            name: The name by which the user knows the option; by default the field's name.

        Raises:
            ConfigError: The value is refused; the error names the option, what was wanted and what came.
        """
        says, name = self.says, name or self.name
        if says is None or (value is None and self.may_be_none):
            return
        if not self._is_of_kind(value) or (says.choices and value not in says.choices):
            raise ConfigError(f"{name} must be {self.wanted}, got {value!r}", key=self.name)
        if self.kind in (int, float) and not says.low <= value <= says.high:  # type: ignore[operator]
            limits = f"be {self.wanted}" if says.high == math.inf else f"lie in {_short(says.low)}..{_short(says.high)}"
            raise ConfigError(f"{name} must {limits}, got {value!r}", key=self.name)
        if self.kind is float and math.isinf(value) and says.low > -math.inf:  # type: ignore[arg-type]
            raise ConfigError(f"{name} must be {self.wanted}, got {value!r}", key=self.name)

    def _is_of_kind(self, value: object) -> bool:
        if self.kind is float:
            return isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind is int:
            return isinstance(value, int) and not isinstance(value, bool)
        if self.kind is str:
            return isinstance(value, str) and (value != "" or self.default == "")
        if self.kind is tuple:
            is_whole = isinstance(value, tuple) and bool(value or self.default == ())
            return is_whole and (self.item is not str or all(isinstance(each, str) and each for each in value))  # type: ignore[attr-defined]
        if self.kind is Mapping:
            return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
        return isinstance(value, self.kind)


def options_of(kind: type) -> Mapping[str, Option]:
    """Return the options of a dataclass in the order of its fields."""
    return _options_of(kind)


def plain_options_of(kind: type) -> dict[str, Option]:
    """Return the options of a user's dataclass that `__init__` takes.

    Integers, floats, booleans and strings are checked by their types where their fields say nothing.
    """
    found = {}
    for item in fields(kind):
        option = options_of(kind)[item.name]
        if option.says is None and option.kind in _TYPE_NAMES:
            option = replace(option, says=Says(""))
        if item.init:
            found[item.name] = option
    return found


@cache
def _options_of(kind: Any) -> Mapping[str, Option]:  # noqa: ANN401
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # a name for type checkers alone
        hints = dict.fromkeys((item.name for item in fields(kind)), object)
    found = {}
    for item in fields(kind):
        hint, says = hints[item.name], None
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            says = next((note for note in notes if isinstance(note, Says)), None)
        inner = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kinds = [each for each in inner if each is not NoneType]
        plain = tuple(tuple if get_origin(each) is Sequence else get_origin(each) or each for each in kinds)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        one = plain[0] if len(plain) == 1 else plain
        element = get_args(kinds[0])[0] if one is tuple else None
        found[item.name] = Option(item.name, one, element, NoneType in inner, default, says)
    return found


def check(instance: object, *, as_flags: bool = False) -> None:
    """Check all options of a frozen dataclass that say something; lists become tuples.

    The class calls it in its `__post_init__`.

    Raises:
        ConfigError: An option is wrong; the error names the first such, as a flag of a command line if `as_flags`.
    """
    for option in options_of(type(instance)).values():
        value = getattr(instance, option.name)
        if option.kind is tuple and isinstance(value, list):
            value = _as_tuples(value)
            object.__setattr__(instance, option.name, value)
        option.check(value, option.flag if as_flags else "")


def from_mapping(kind: type[Kind], values: Mapping[str, object], where: Where, path: KeyPath = ()) -> Kind:
    """Make a dataclass from plain values, such as those of a TOML or JSON file.

    A table becomes a dataclass, too.

    Args:
        kind: The dataclass.
        values: Values by the names of its fields.
        where: Function that returns the place of a key for errors, such as file and line.
        path: Keys that lead to `values`.

    Raises:
        ConfigError: A key is unknown or missing, or a value is wrong; the error has its place.
    """
    known = options_of(kind)
    refuse_unknown_keys(values, known, path, where)
    for option in known.values():
        if option.default is MISSING and option.name not in values:
            dotted = ".".join(str(part) for part in (*path, option.name))
            raise ConfigError(f"{where(path)}: {dotted!r} is missing; set it", key=option.name)
    made = {name: _made(known[name], value, where, (*path, name)) for name, value in values.items()}
    try:
        return kind(**made)
    except ConfigError as error:
        raise ConfigError(f"{where((*path, error.key or ''))}: {error}", key=error.key) from None


def _made(option: Option, value: object, where: Where, path: KeyPath) -> object:
    if isinstance(value, Mapping) and is_dataclass(option.kind):
        made: object = from_mapping(cast(type, option.kind), value, where, path)
        return made
    return _as_tuples(value) if option.kind is tuple else value


def _as_tuples(value: object) -> object:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _short(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
