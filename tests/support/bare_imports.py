"""Importing this hides packages that Keras imports wherever they are installed, and that take a third of its import."""

import sys

HIDDEN = ("sklearn", "matplotlib", "grain")

for _name in HIDDEN:
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]  # an import of it raises ModuleNotFoundError


def show() -> None:
    """Let a script import them, once Keras has been imported."""
    for name in HIDDEN:
        if sys.modules.get(name) is None:
            sys.modules.pop(name, None)
