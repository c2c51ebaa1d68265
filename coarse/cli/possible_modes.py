"""The modes that can be: one that nobody asked for by name may be impossible on a machine, and is left out."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from coarse.errors import CapacityError, ConfigError
from coarse.simulation.scenario import Mode

T = TypeVar("T")


def of_possible_modes(
    modes: Iterable[Mode], of_mode: Callable[[Mode], T], *, must_have: bool, on_left_out: Callable[[str], None]
) -> list[T]:
    """What `of_mode` gives for each mode that is possible, in order; `on_left_out` gets a line on each other.

    Raises:
        ConfigError, CapacityError: why a mode is impossible, where they `must_have` been possible or none is.
    """
    found: list[T] = []
    refusal: Exception | None = None
    for mode in modes:
        try:
            found.append(of_mode(mode))
        except (ConfigError, CapacityError) as error:
            if must_have:
                raise type(error)(f"mode {mode}: {error}") from None
            refusal = error
            on_left_out(f"Left out {mode}: {error}.")
    if not found:
        raise ConfigError(f"no mode can run: {refusal}")
    return found
