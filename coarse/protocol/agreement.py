"""Agreement of ranks on what each of them found: all get the same value, or the same error.

The caller carries the texts and passes them by rank: MPI at the start, a group of workers, or memory devices.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

from coarse import errors
from coarse.errors import CoarseError, ConfigError

Found = TypeVar("Found")
Entries = Sequence[tuple[str, str]]
"""Pairs of a tensor's name and its description, in order."""


def settled(
    check: Callable[[], Found], gather: Callable[[str], Sequence[str]], ranks: Sequence[int], own: int
) -> Found:
    """Return the result of `check`; if it raises on any rank, raise the first one's error on every rank.

    Args:
        check: Function to call here; any fault that it finds is a CoarseError or OSError.
        gather: Function that brings a text to all members, and returns all members' texts in their order.
        ranks: Number of each member for people, by member.
        own: Place of this member among them.

    Raises:
        CoarseError: The fault that the first member found, of its class.
    """
    found, error = None, None
    try:
        found = check()
    except (CoarseError, OSError) as refused:
        error = refused
    for member, text in enumerate(gather("" if error is None else f"{type(error).__name__}\0{error}")):
        if not text:
            continue
        if error is not None and member == own:
            raise error
        kind, _, message = text.partition("\0")
        raised: type[CoarseError] = getattr(errors, kind, ConfigError)
        raise raised(f"rank {ranks[member]} reports: {message}")
    return found  # type: ignore[return-value]


def first_difference(lists: Sequence[Entries], what: str) -> str:
    """Return a text that names the first entry in which some ranks' lists differ from others'."""
    tables = [dict(entries) for entries in lists]
    for name in dict.fromkeys(name for entries in lists for name, _ in entries):
        found = [table.get(name) for table in tables]
        if len(set(found)) > 1:
            kinds = dict.fromkeys(found)
            said = [f"{kind or 'missing'} on ranks {_at(found, kind)}" for kind in kinds]
            return f"{what} {name!r} differs between ranks: {'; '.join(said)}; build the same model on every rank"
    for position, row in enumerate(zip(*lists, strict=True)):
        names = [name for name, _ in row]
        if len(set(names)) > 1:
            said = [f"{name!r} on ranks {_at(names, name)}" for name in dict.fromkeys(names)]
            return (
                f"the order of {what}s differs between ranks: number {position} is "
                f"{'; '.join(said)}; list them in one order on every rank"
            )
    raise AssertionError("equal lists differ nowhere")


def first_lines_apart(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Return the first two lines at one place that differ; "nothing more" where a list has ended."""
    return next(pair for pair in zip_longest(one, other, fillvalue="nothing more") if pair[0] != pair[1])


def _at(values: Sequence[str | None], value: str | None) -> list[int]:
    return [rank for rank, here in enumerate(values) if here == value]
