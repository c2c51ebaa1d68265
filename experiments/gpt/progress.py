"""The progress of a run on rank 0: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.gpt.train import Report

LINES_PER_RUN = 8
"""How many lines a run prints where there is no terminal."""


class RunProgress:
    """Shows loss, iterations/s and the share of exposed communication; `with` it around the run."""

    def __init__(self, title: str, num_steps: int) -> None:
        self._title = title
        self._num_steps = num_steps
        self._next_line = 0
        columns = terminal_columns()
        self._bar = _bar(columns) if columns else None
        self._task = self._bar.add_task(title, total=num_steps, status="") if self._bar else None

    def __enter__(self) -> RunProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, report: Report) -> None:
        """Draw where the run stands."""
        status = status_text(report)
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=report.step, status=status, refresh=True)
        elif report.step >= self._next_line or report.step == self._num_steps:
            print(f"{self._title}  step {report.step}/{self._num_steps}  {status}", flush=True)
            self._next_line = report.step + self._num_steps // LINES_PER_RUN


def status_text(report: Report) -> str:
    """Loss, speed, and exposed communication once it is known."""
    text = f"loss {report.loss:.4f}  {1 / report.step_s:.2f} it/s"
    return text if report.exposed_s is None else f"{text}  exposed {report.exposed_s / report.step_s:.1%}"


def terminal_columns() -> int:
    """The width of the terminal that shows this process's output, 0 where there is none.

    mpirun gives its ranks a terminal without a size whatever its own output is, so the parent's is asked too.
    """
    for stream in (f"/proc/{os.getpid()}/fd/1", f"/proc/{os.getppid()}/fd/1"):
        columns = _columns_of(stream)
        if columns:
            return columns
    return 0


def _columns_of(stream: str) -> int:
    """The columns of a stream, 0 if it is not a terminal or may not be opened."""
    try:
        descriptor = os.open(stream, os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return 0
    try:
        return os.get_terminal_size(descriptor).columns
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def _bar(columns: int) -> Progress:
    """A bar that draws only when told to, so that no thread takes time from the training."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=Console(file=sys.stdout, force_terminal=True, width=columns),
        auto_refresh=False,
    )
