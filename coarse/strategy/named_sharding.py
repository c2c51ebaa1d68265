# Reads files. The module of a sharded mode that is not coarse's own.
"""Sharded modes by their names: coarse's own, and classes of a user's module, as MODULE:CLASS or FILE.py:CLASS."""

import inspect
from collections.abc import Mapping, Sequence

from coarse.errors import ConfigError
from coarse.strategy.named import class_named, found_in_module, made
from coarse.strategy.sharding import SHARDINGS, Sharding, require_sharding


def sharding_named(
    mode: object, names: Sequence[str], *, options: Mapping[str, object] | None = None, asked: str = "mode"
) -> Sharding:
    """Return a sharded mode.

    Args:
        mode: One of `names`, MODULE:CLASS or FILE.py:CLASS; or a Sharding, as it is.
        names: Those of coarse's own that may be meant.
        options: Fields of a user's class.
        asked: For errors, where the mode was named.

    Raises:
        ConfigError: no such mode, module or class, an option that it does not take, or gathers that cannot be made.
    """
    if isinstance(mode, Sharding):
        return require_sharding(mode, type(mode).__name__)
    text = str(mode)
    if ":" in text:
        kind = class_named(text, Sharding)
    elif text in names:
        kind = SHARDINGS[text]
    else:
        known = ", ".join(map(repr, names))
        raise ConfigError(f"{asked} must be one of {known}, MODULE:CLASS or FILE.py:CLASS, got {mode!r}", key="mode")
    return require_sharding(made(kind, dict(options or {}), text), text)


def names_sharding(mode: str) -> bool:
    """Return whether a mode names a class of sharded modes in a user's module."""
    found = found_in_module(mode) if ":" in mode else None
    return inspect.isclass(found) and issubclass(found, Sharding)
