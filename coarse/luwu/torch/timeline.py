"""Trace of a worker's computes and waits for parameters, to be seen beside optimizer nodes' traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coarse.errors import StorageError
from coarse.protocol.clock import WallClock
from coarse.protocol.trace import Trace, merge

if TYPE_CHECKING:
    from coarse.luwu.client.line import Copy

MERGED = "luwu.trace.json"
_COMPUTE, _PULLS, _PUSHES = 0, 1, 2


class WorkerTimeline:
    """Recorder of a worker's spans, from a model's making to its end."""

    def __init__(self, worker: int, folder: str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the timeline's folder {folder} cannot be made: {error}; name another one") from error
        self._worker = worker
        self._trace = Trace(worker, f"worker {worker}")
        for lane, name in ((_COMPUTE, "compute"), (_PULLS, "pulls, copied"), (_PUSHES, "pushes, copied")):
            self._trace.lane(lane, name)
        self._clock = WallClock()

    def now_s(self) -> float:
        """Return the seconds on the clock of the trace."""
        return self._clock.now_s()

    def computed(self, what: str, begin_s: float) -> None:
        """Record a compute that began at `begin_s` and ends now."""
        self._trace.span(what, "compute", begin_s, self.now_s(), lane=_COMPUTE)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Record the time within the context as waiting."""
        begin_s = self.now_s()
        yield
        self._trace.span(what, "wait", begin_s, self.now_s(), lane=_COMPUTE)

    def copied(self, copy: Copy, begin_s: float, end_s: float) -> None:
        """Record a copy of a chunk by the thread that carries."""
        is_pull = copy.pulled is not None
        name = f"unit {copy.span.unit}, chunk {copy.span.chunk}"
        self._trace.span(name, "pull" if is_pull else "push", begin_s, end_s, lane=_PULLS if is_pull else _PUSHES)

    def write(self) -> None:
        """Write this worker's trace; all do before any goes on to `merge`."""
        self._trace.write(self._folder / f"worker-{self._worker}.trace.json")

    def merge(self) -> None:
        """Have worker 0 make one trace of all that lie in its host's folder."""
        if self._worker:
            return
        found = [*sorted(self._folder.glob("worker-*.trace.json")), *sorted(self._folder.glob("node-*.trace.json"))]
        merge(found, self._folder / MERGED)
