"""Function of a user's own that an option names, as MODULE:FUNCTION or FILE.py:FUNCTION."""

from collections.abc import Callable

from coarse.errors import ConfigError
from coarse.strategy.named import module_named


def function_named(text: str, option: str) -> Callable[[], object]:
    """Return the function that an option's text names; modules of the working folder are found, too.

    Raises:
        ConfigError: a text of another form, or a module or function that cannot be found; it names both.
    """
    module_name, _, name = text.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"--{option} must be MODULE:FUNCTION or FILE.py:FUNCTION, got {text!r}", key=option)
    try:
        found: Callable[[], object] = getattr(module_named(module_name), name)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"--{option} {text}: {error}; name a function in a module that is found from this folder", key=option
        ) from error
    if not callable(found):
        raise ConfigError(f"--{option} {text}: {name} is {type(found).__name__}; name a function", key=option)
    return found
