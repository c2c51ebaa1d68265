"""For all commands that run in this process."""

import pytest

from coarse.cli import progress
from coarse.protocol.clock import VirtualClock


@pytest.fixture(autouse=True)
def progress_without_lines(monkeypatch):
    """Time stands still for progress, so that a slow machine's lines do not come between a command's messages."""
    monkeypatch.setattr(progress, "WallClock", VirtualClock)
