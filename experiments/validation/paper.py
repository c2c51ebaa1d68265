"""A paper as it is held against simulations: its figures, what each came to, its inputs and their intervals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console

from experiments.validation.claims import HEAD, ClaimRow
from experiments.validation.declared import Declared
from experiments.validation.interval_study import Study
from experiments.validation.page import by_part, markdown, num_held, num_met, summary

Tables = Iterator[tuple[str, str, list[list[str]]]]
"""Each a title, what it shows, and its lines; the first is the head."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, a table or a section of a paper."""

    number: str
    what: str
    rows: Callable[[], list[ClaimRow]] | None = None
    command: str = ""
    reason: str = ""
    """Why there are no rows."""


def figure(number: str, what: str, script: ModuleType) -> Figure:
    """One that a script simulates."""
    return Figure(number=number, what=what, rows=script.rows, command=f"python -m {script.__name__}")


def missing(number: str, what: str, reason: str) -> Figure:
    """One without rows."""
    return Figure(number=number, what=what, reason=reason)


def _nothing(_: Console) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Paper:
    """One paper, or some that are held together."""

    name: str
    """As `--only` has it."""
    title: str
    explained: str
    """The page in docs/ that says why."""
    figures: tuple[Figure, ...]
    declared: tuple[Declared, ...]
    reaches: str = "within 10 % of a stated number, or the stated order"
    """When a row is met."""
    prepare: Callable[[Console], None] = _nothing
    """Simulates on all cores beforehand what rows and tables need."""
    part_of: Callable[[ClaimRow], str] = lambda row: ""
    """The title of a row's part of the paper's section."""
    tables: Callable[[], Tables] = lambda: iter(())
    """Further ones."""
    studies: tuple[Study, ...] = ()
    """Of its inputs' intervals."""

    def rows_by_figure(self) -> dict[Figure, list[ClaimRow]]:
        """What each figure comes to."""
        return {each: each.rows() for each in self.figures if each.rows is not None}

    def parts(self, rows: list[ClaimRow]) -> dict[str, list[ClaimRow]]:
        """Rows by their part of the section, the first part's first."""
        return by_part(rows, self.part_of)

    def figure_lines(self, found: dict[Figure, list[ClaimRow]]) -> Iterator[list[str]]:
        """Of the table of figures: figure, what it shows, command, and how many rows of its own part are met."""
        for each in self.figures:
            if each.rows is None:
                yield [self.title, each.number, each.what, "-", f"not simulated: {each.reason}"]
                continue
            rows = next(iter(self.parts(found[each]).values()), [])
            held = num_held(rows)
            verdict = f"{num_met(rows)} of {held} met" if held else "input"
            yield [self.title, each.number, each.what, f"`{each.command}`", verdict]

    def section(self, rows: list[ClaimRow]) -> Iterator[str]:
        """Its part of the page: rows, why some are missed, inputs, and further tables."""
        parts = self.parts(rows)
        yield from ("", f"## {self.title}", "")
        yield (
            f"[{self.explained}]({self.explained}) explains it. A row is met {self.reaches}. A row `input` is what our "
            "machine was made from, no reproduction."
        )
        for part, own in parts.items():
            yield from ("", f"### {part}" if part else "", "", f"{summary(own)}.", "")
            yield from markdown([list(HEAD), *(row.cells for row in own)])
        if any(row.why for row in rows):
            yield from ("", "Why:", "", *(f"- {row.claim}. *{row.why}*" for row in rows if row.why))
        inputs = [[one.name, one.value, one.basis, one.source] for one in self.declared]
        yield from ("", "Inputs:", "", *markdown([["input", "value", "basis", "source"], *inputs]))
        for title, what, lines in self.tables():
            yield from ("", f"### {title}", "", what, "", *markdown(lines))
