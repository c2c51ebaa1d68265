"""All-reduce by the workers themselves: a ring of workers, one gradient after the other.

The ring's steps are those of the proxies' sync cores (`RingRun`), with workers in the place of devices.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from coarse.proxy.instructions import Instruction, RingId, RingSend
from coarse.proxy.ring_run import RingRun
from coarse.simulation.engine import Engine
from coarse.simulation.job import DTYPE, Gradient, Job

OnSynced = Callable[[int, int], None]


class WorkerRing:
    """A communication stream per worker; each takes gradients in the order in which they are given."""

    def __init__(self, engine: Engine, job: Job, gradients: Sequence[Gradient], on_synced: OnSynced) -> None:
        self._engine = engine
        self._paths = job.site.between_workers
        self._members = tuple(range(job.num_workers))
        self._gradients = gradients
        self._on_synced = on_synced
        self._waiting: list[deque[int]] = [deque() for _ in self._members]
        """Positions of gradients that each worker has given and not finished; the first is under way."""
        self._versions: dict[tuple[int, int], int] = {}
        self._runs: dict[tuple[int, RingId], RingRun] = {}

    def push(self, worker: int, position: int) -> None:
        """A worker gives a gradient to its stream."""
        self._waiting[worker].append(position)
        if len(self._waiting[worker]) == 1:
            self._begin(worker, position)

    def _begin(self, worker: int, position: int) -> None:
        version = self._versions.get((worker, position), 0)
        self._versions[worker, position] = version + 1
        ring = RingId(position, 0, version, 0)
        run = self._run(worker, ring)
        self._carry_out(worker, run.on_folded(0, present=True))
        self._finish_if_done(worker, ring)

    def _run(self, worker: int, ring: RingId) -> RingRun:
        run = self._runs.get((worker, ring))
        if run is None:
            num_elements = self._gradients[ring.key].num_elements
            run = self._runs[worker, ring] = RingRun(ring, num_elements, self._members, worker, 1)
        return run

    def _carry_out(self, worker: int, instructions: list[Instruction]) -> None:
        for step in instructions:
            if isinstance(step, RingSend):
                self._send(worker, step)

    def _send(self, worker: int, send: RingSend) -> None:
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        arrived = partial(self._on_chunk, send.device, send.ring, send.header.step)
        self._engine.move(("workers", worker), self._paths[worker, send.device], nbytes, arrived)

    def _on_chunk(self, worker: int, ring: RingId, step: int) -> None:
        self._carry_out(worker, self._run(worker, ring).on_chunk(step, present=True))
        self._finish_if_done(worker, ring)

    def _finish_if_done(self, worker: int, ring: RingId) -> None:
        if not self._runs[worker, ring].is_finished:
            return
        del self._runs[worker, ring]
        waiting = self._waiting[worker]
        waiting.popleft()
        if waiting:
            self._begin(worker, waiting[0])
        self._on_synced(worker, ring.key)
