"""What FSDP2 waits for before it uses what was gathered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from coarse.collectives.progress import Pending


class PendingWork(dist.Work):
    """A job of the progress thread, as torch's Work."""

    def __init__(self, pending: Pending, finish: Callable[[], None] = lambda: None) -> None:
        """`finish` runs once, in the thread that waits, after the job is done."""
        super().__init__()
        self.pending = pending
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once the tensors may be used; raises coarse's errors."""
        self.pending.wait(timeout.total_seconds() if timeout else None)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self.pending.is_done()
