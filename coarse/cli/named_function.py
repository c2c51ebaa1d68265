"""A user's own function that an option names, as MODULE:FUNCTION or FILE.py:FUNCTION."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from coarse.errors import ConfigError


def function_named(text: str, option: str) -> Callable[[], object]:
    """The function that an option's text names; its module is imported from the working folder, too.

    Raises:
        ConfigError: a text of another form, or a module or function that cannot be found; it names both.
    """
    module_name, _, name = text.rpartition(":")
    if not module_name or not name:
        raise ConfigError(f"--{option} must be MODULE:FUNCTION or FILE.py:FUNCTION, got {text!r}", key=option)
    try:
        found: Callable[[], object] = getattr(_module_of(module_name), name)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"--{option} {text}: {error}; name a function in a module that is found from this folder", key=option
        ) from error
    if not callable(found):
        raise ConfigError(f"--{option} {text}: {name} is {type(found).__name__}; name a function", key=option)
    return found


def _module_of(name: str) -> ModuleType:
    """A module by its name, or by its file's path."""
    sys.path.insert(0, os.getcwd())
    if not name.endswith(".py"):
        return import_module(name)
    spec = spec_from_file_location(Path(name).stem, name)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
