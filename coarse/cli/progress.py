"""Progress of a command on standard error: bars on a terminal, else a plain line now and then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coarse.protocol.clock import Clock, WallClock

FIRST_S, LINE_S = 2.0, 10.0
"""Seconds until the first line where there is no terminal, and between later ones."""

OnShare = Callable[[float], None]
"""Function that receives the share of a task that is done, from 0 to 1."""


class Tasks:
    """Tasks of a command, one after another."""

    def __init__(self, progress: Progress, console: Console, clock: Clock) -> None:
        self._progress = progress
        self._console = console
        self._clock = clock

    def begin(self, what: str) -> OnShare:
        """Show a task; return the function that receives its progress."""
        if self._console.is_terminal:
            task = self._progress.add_task(what, total=1.0)
            return lambda share: self._progress.update(task, completed=share)
        return self._lines(what)

    def begin_unmeasured(self, what: str) -> Callable[[], None]:
        """Show a task of unknown progress; return the function that ends it."""
        if self._console.is_terminal:
            task = self._progress.add_task(what, total=None)
            return lambda: self._progress.remove_task(task)
        self._print(f"{what} ...")
        return lambda: None

    def _lines(self, what: str) -> OnShare:
        next_s = self._clock.now_s() + FIRST_S

        def tell(share: float) -> None:
            nonlocal next_s
            if self._clock.now_s() >= next_s:
                next_s = self._clock.now_s() + LINE_S
                self._print(f"{what}: {share:.0%}")

        return tell

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def shown_tasks(console: Console | None = None, clock: Clock | None = None) -> Iterator[Tasks]:
    """Show tasks while the block runs; remove the bars at its end."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Tasks(progress, console, clock or WallClock())
