"""Agreement of ranks that have told one another their findings: one value, or one error, on all of them.

The carrier of the texts gives them by rank: MPI at the start, a group of workers, memory devices.

Whoever carries the texts gives them by rank: MPI at the start, a group of workers, memory devices.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

from coarse import errors
from coarse.errors import CoarseError, ConfigError

Found = TypeVar("Found")
Entries = Sequence[tuple[str, str]]
"""(name of a tensor, what it is), in order."""


def settled(
    check: Callable[[], Found], gather: Callable[[str], Sequence[str]], ranks: Sequence[int], own: int
) -> Found:
    """Return what `check` does; where it raises on any rank, raise on all ranks, in the words of the first.

    Args:
        check: called here; whatever it finds wrong is a CoarseError or OSError.
        gather: brings a text to all members, and gives all members' in their order.
        ranks: by member its number for people.
        own: this member's place among them.

    Raises:
        CoarseError: what the first member found wrong, of its class.
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
    """Return in words the first entry in which some ranks' lists differ from others'."""
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
