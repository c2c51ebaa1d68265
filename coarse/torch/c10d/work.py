"""What a call of the backend gives back at once: c10d's Work over a job of the progress thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache, partial

import torch
import torch.distributed as dist

from coarse.collectives.progress import Pending

_MAX_CALLBACKS = 64
"""How many callbacks of futures may wait for further collectives at once."""


class CoarseWork(dist.Work):
    """A collective or message under way.

    Args:
        pending: its job.
        tensors: what the future's value is.
        source: group rank that a message came from, once it has come.
    """

    def __init__(
        self, pending: Pending, tensors: Sequence[object], source: Callable[[], int] | None = None
    ) -> None:
        super().__init__()
        self._pending = pending
        self._tensors = list(tensors)
        self._source = source
        self._future: torch.futures.Future[list[object]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True once the tensors hold the result; raise what went wrong.

        Raises:
            StallError: not done within `timeout`, or within the group's timeout.
            DeadRankError: a rank has died.
            MismatchError: ranks called different collectives, or with different sizes or types.
        """
        limit_s = timeout.total_seconds() if timeout else 0.0
        self._pending.wait(limit_s if limit_s > 0 else float("inf"))
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._pending.is_over

    def is_success(self) -> bool:
        """Whether it is done."""
        return self._pending.is_over and self._pending.failure is None

    def exception(self) -> BaseException | None:
        """What went wrong; None where nothing has."""
        return self._pending.failure

    def synchronize(self) -> None:
        """The same as `wait`: results lie in the tensors, whatever the stream."""
        self.wait()

    def result(self) -> list[object]:  # type: ignore[override]  # c10d's may be lists of lists too
        """The tensors that hold the result, once it is done."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """The group rank that a received message came from."""
        if self._source is None:
            raise RuntimeError("source_rank is known of receives alone")
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[object]]:
        """A future of the tensors; its callbacks may wait for further collectives.

        Where the job has failed, waiting for it raises a RuntimeError with the error's name and text: torch's reducer
        reads the value in C++, where an exception that Python has set on a future is taken for tensors.
        """
        if self._future is None:
            over: torch.futures.Future[None] = torch.futures.Future()
            self._future = over.then(self._outcome)
            self._pending.when_over(partial(_complete_soon, over))
        return self._future

    def _outcome(self, _: object) -> list[object]:
        if self._pending.failure is not None:
            raise self._pending.failure
        return self._tensors


def _complete_soon(over: "torch.futures.Future[None]", _: Pending) -> None:
    _callback_threads().submit(over.set_result, None)


@cache
def _callback_threads() -> ThreadPoolExecutor:
    """Threads that complete futures: callbacks run in them, never in the one thread that moves the bytes."""
    return ThreadPoolExecutor(_MAX_CALLBACKS, "coarse-futures")
