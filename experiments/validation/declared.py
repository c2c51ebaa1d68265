"""What an evaluation takes for granted: inputs with their sources, and those that are taken for a while instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from coarse.errors import ConfigError

SOURCED, DERIVED, ASSUMED = "sourced", "derived", "assumed"


@dataclass(frozen=True)
class Declared:
    """One input as it stands in a paper's table of inputs."""

    name: str
    value: str
    basis: str
    """SOURCED, DERIVED, ASSUMED, or fitted to a row, which then counts as an input."""
    source: str


def require_declared(names: tuple[str, ...], declared: tuple[Declared, ...]) -> tuple[str, ...]:
    """The names again; ConfigError for one that is no declared input."""
    unknown = sorted(set(names) - {one.name for one in declared})
    if unknown:
        raise ConfigError(f"no declared input is called {unknown[0]!r}; add it to the paper's DECLARED")
    return names


Choices = TypeVar("Choices")


class Taken(Generic[Choices]):
    """The inputs of an evaluation that its cells take where they state none."""

    def __init__(self, central: Choices) -> None:
        self._now: ContextVar[Choices] = ContextVar("taken", default=central)

    def now(self) -> Choices:
        """Those of the innermost `under`, or the central ones."""
        return self._now.get()

    @contextmanager
    def under(self, inputs: Choices) -> Iterator[None]:
        """Take these within."""
        token = self._now.set(inputs)
        try:
            yield
        finally:
            self._now.reset(token)
