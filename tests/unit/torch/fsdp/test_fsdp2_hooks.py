"""The check of FSDP2's hooks names those that the adapter uses, and no others."""

import ast
import importlib
from pathlib import Path

from coarse.torch.fsdp import fsdp2, fsdp2_hooks


def used_names() -> set[str]:
    """Attributes that the adapter reads of anything, or names in a text: a method may be replaced by its name."""
    tree = ast.parse(Path(fsdp2.__file__).read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return attributes | {text for text in texts if isinstance(text, str)}


def methods_of(module: str, kind: str) -> set[str]:
    found = getattr(importlib.import_module(module), kind)
    return {name for name, value in vars(found).items() if callable(value)}


def test_every_hook_that_is_asked_for_is_used():
    listed = {name for names in fsdp2_hooks._HOOKS.values() for name in names}
    assert listed <= used_names()


def test_every_private_method_that_is_used_is_asked_for():
    for place, names in fsdp2_hooks._HOOKS.items():
        private = {name for name in methods_of(*place) & used_names() if name.startswith("_") and name != "__init__"}
        assert private <= set(names), place
