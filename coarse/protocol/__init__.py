"""Decisions that all ranks share, made without I/O: configuration, records, plans, rings, the partition table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a subclass's method, which its base class's docstring describes (PEP 698, for Python 3.11)."""
        return method


__all__ = ["override"]
