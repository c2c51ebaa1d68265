"""A number that a benchmark should reach, and what it reached: limits, and verdicts on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A number that results must not be below, or not above; `unit` follows it in print."""

    bound: float
    unit: str
    is_least: bool

    def holds(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.is_least else 'most'} {self.bound:g}{self.unit}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One target, what was found at each place where it holds, and the places that miss it."""

    target: str
    limit: str
    found: tuple[tuple[str, str], ...]
    missed: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def reached(self) -> str:
        """Yes, no and where, or what has not been measured."""
        if self.missed:
            return f"no ({', '.join(self.missed)})"
        if self.absent:
            return f"not measured ({', '.join(self.absent)})"
        return "yes"


def judge(target: str, limit: Limit, found: Mapping[str, float], places: Iterable[str]) -> Verdict:
    """The verdict on a target that holds at `places`, of which `found` may lack some."""
    wanted = list(places)
    return Verdict(
        target=target,
        limit=str(limit),
        found=tuple((place, f"{found[place]:.2f}{limit.unit}") for place in wanted if place in found),
        missed=tuple(place for place in wanted if place in found and not limit.holds(found[place])),
        absent=tuple(place for place in wanted if place not in found),
    )


def at_least(bound: float) -> Limit:
    """So many times or more."""
    return Limit(bound=bound, unit="x", is_least=True)


def at_most(bound: float) -> Limit:
    """So many times or fewer."""
    return Limit(bound=bound, unit="x", is_least=False)


def percent_at_most(share: float) -> Limit:
    """So many of a hundred or fewer."""
    return Limit(bound=share * 100, unit=" %", is_least=False)
