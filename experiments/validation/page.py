"""Tables of claims as Markdown, and how many came to what."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from experiments.validation.claims import ClaimRow, Verdict

Item = TypeVar("Item")
MISSES = (Verdict.MISSED, Verdict.INPUT)


def summary(rows: Sequence[ClaimRow]) -> str:
    """How many rows came to what."""
    counts = Counter(row.verdict for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def num_met(rows: Sequence[ClaimRow]) -> int:
    """How many are neither missed nor inputs."""
    return sum(row.verdict not in MISSES for row in rows)


def num_held(rows: Sequence[ClaimRow]) -> int:
    """How many are held against the paper: all but inputs."""
    return sum(row.verdict is not Verdict.INPUT for row in rows)


def by_part(items: Iterable[Item], part_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Items by their part of a page, in the order in which parts come."""
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(part_of(item), []).append(item)
    return parts


def text_of(lines: Sequence[str]) -> str:
    """Lines as a page, with one empty line where there are several."""
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def markdown(lines: list[list[str]]) -> Iterator[str]:
    """A table whose first line is its head."""
    head, *body = lines
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in body:
        yield "| " + " | ".join(line) + " |"
