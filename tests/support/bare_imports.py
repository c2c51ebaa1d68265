"""Importing this hides packages that Keras imports wherever they are installed, and that take a third of its import."""

import sys

for name in ("sklearn", "matplotlib", "grain"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # an import of it raises ModuleNotFoundError
