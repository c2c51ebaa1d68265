"""For all commands that run in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from coarse.cli import progress
from coarse.protocol.clock import VirtualClock


@pytest.fixture(autouse=True)
def progress_without_lines(monkeypatch):
    """Time stands still for progress, so that a slow machine's lines do not come between a command's messages."""
    monkeypatch.setattr(progress, "WallClock", VirtualClock)


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_drawn_once() -> Iterator[None]:
    """The first picture of each name is drawn, and others of the name are copies: drawing takes most of the time."""
    draw, drawn = FigureCanvasAgg.print_figure, {}

    def drawn_once(canvas: FigureCanvasAgg, path: Path, **options: object) -> None:
        if path.name not in drawn:
            draw(canvas, path, **options)
            drawn[path.name] = path.read_bytes()
        path.write_bytes(drawn[path.name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "print_figure", drawn_once)
        yield
