"""Result of a backend's call, returned at once: c10d's Work over a job of the progress thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache, partial

import torch
import torch.distributed as dist

from coarse.client.link import FUTURES_THREADS
from coarse.collectives.progress import Pending

_Future = torch.futures.Future[list[object]]
_MAX_CALLBACKS = 64
"""Number of futures' callbacks that may wait for further collectives at once."""


class CoarseWork(dist.Work):
    """Collective or message under way.

    Args:
        pending: its job.
        tensors: the future's value.
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
        """Return True once the tensors hold the result, or raise the job's error.

        Raises:
            StallError: not done within `timeout`, or within the group's timeout.
            DeadRankError: a rank has died.
            MismatchError: ranks called different collectives, or with different sizes or types.
        """
        limit_s = timeout.total_seconds() if timeout else 0.0
        self._pending.wait(limit_s if limit_s > 0 else float("inf"))
        return True

    def is_completed(self) -> bool:
        """Return whether it is over, with success or without."""
        return self._pending.has_come()

    def is_success(self) -> bool:
        """Return whether it is done with success."""
        return self._pending.is_over and self._pending.failure is None

    def exception(self) -> BaseException | None:
        """Return the job's error; None where there is none."""
        return self._pending.failure

    def synchronize(self) -> None:
        """Wait as `wait` does: results lie in the tensors, on any stream."""
        self.wait()

    def result(self) -> list[object]:  # type: ignore[override]  # c10d's may be lists of lists too
        """Return the tensors that hold the result, once it is done."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the group rank that a received message came from."""
        if self._source is None:
            raise RuntimeError("source_rank is known of receives alone")
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[object]]:
        """Return a future of the tensors; its callbacks may wait for further collectives.

        Where the job has failed, waiting for it raises a RuntimeError with the error's name and text: torch's reducer
        reads the value in C++, where an exception that Python has set on a future is taken for tensors.
        """
        if self._future is None:
            over: torch.futures.Future[None] = torch.futures.Future()
            self._future = over.then(self._outcome)
            self._pending.when_over(partial(_complete_soon, over))
            if self._pending.due is not None:
                self._future = in_emulated_time(self._future, self._pending)
        return self._future

    def _outcome(self, _: object) -> list[object]:
        if self._pending.failure is not None:
            raise self._pending.failure
        return self._tensors


class _EmulatedFuture(torch.futures.Future[list[object]]):
    """Future that is waited for in emulated time, too."""

    def __init__(self, pending: Pending) -> None:
        super().__init__()
        self._pending = pending

    def wait(self) -> list[object]:
        """Return the value; raise the job's error."""
        self._pending.wait(float("inf"))
        return super().wait()


def in_emulated_time(future: "_Future", pending: Pending) -> "_Future":
    """Have a future's time pass in an emulated job.

    torch waits for the future of a call that backward makes inside C++, before backward ends: so the engine calls back
    at its end, in the order in which it was asked to. All others are waited for by the script.
    """
    if _is_in_backward():
        torch.autograd.Variable._execution_engine.queue_callback(partial(pending.wait, float("inf")))
        return future
    emulated = _EmulatedFuture(pending)

    def complete(done: "_Future") -> None:
        try:
            emulated.set_result(done.value())
        except RuntimeError as failure:
            emulated.set_exception(failure)  # type: ignore[arg-type]  # torch says that it takes a result

    future.add_done_callback(complete)
    return emulated


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _complete_soon(over: "torch.futures.Future[None]", _: Pending) -> None:
    _callback_threads().submit(over.set_result, None)


@cache
def _callback_threads() -> ThreadPoolExecutor:
    """Return the threads that complete futures.

    Callbacks run in them, never in the one thread that moves the bytes.
    """
    return ThreadPoolExecutor(_MAX_CALLBACKS, FUTURES_THREADS)
