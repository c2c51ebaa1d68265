"""Workers that compute forward and backward and wait for their gradients, iteration by iteration."""

from collections.abc import Callable
from functools import partial

from coarse.simulation.engine import Engine
from coarse.simulation.job import Job
from coarse.simulation.macro import ProxiedAlike, WorkerRingAlike
from coarse.simulation.proxied import Proxied
from coarse.simulation.recording import RecordingEngine
from coarse.simulation.report import Report, Sync, WorkerIteration
from coarse.simulation.worker_ring import WorkerRing

Progress = Callable[[int, int], None]
"""(gradients that workers have got back in all iterations, all there are): for a progress bar."""


def simulate(job: Job, *, on_progress: Progress | None = None, record: bool = False) -> Report:
    """Run a job to its end. Deterministic: the same job gives the same report, to the last bit.

    `record` keeps what every port, link and adder did, for timelines; it changes no time.
    """
    return _Training(job, on_progress, record).run()


class _Training:
    def __init__(self, job: Job, on_progress: Progress | None, record: bool) -> None:
        self._job = job
        self._recorder = RecordingEngine(job.site.links) if record else None
        self._engine = self._recorder or Engine(job.site.links)
        self._on_progress = on_progress
        split, alike = job.num_proxy_gradients, job.one_stands_for_all
        devices, ring = (ProxiedAlike, WorkerRingAlike) if alike else (Proxied, WorkerRing)
        self._proxied = devices(self._engine, job, job.gradients[:split], self._on_synced) if split else None
        rest = job.gradients[split:]
        self._ring = ring(self._engine, job, rest, self._on_ring_synced) if rest else None
        self._begun = [_Begun(self._engine.now_s)] * job.num_workers
        self._backward_ends: list[list[float]] = [[] for _ in range(job.num_iterations)]
        """Iteration -> when each worker's backward ended, as they end."""
        self._ended: list[tuple[int, int, float, float, float, float]] = []
        self._num_synced = 0
        self._syncs: list[Sync] = []

    def run(self) -> Report:
        for worker in self._job.simulated_workers:
            self._begin_iteration(worker, 0)
        self._engine.run()
        wanted = len(self._job.simulated_workers) * self._job.num_iterations
        assert len(self._ended) == wanted, f"{wanted - len(self._ended)} iterations never ended"
        links = self._job.site.links
        return Report(
            iterations=tuple(self._rows()),
            link_bytes={link.name: self._engine.bytes_moved(number) for number, link in enumerate(links)},
            num_events=self._engine.num_events,
            syncs=tuple(self._syncs),
            recording=self._recorder.recording if self._recorder else None,
        )

    # --- one worker

    def _begin_iteration(self, worker: int, iteration: int) -> None:
        job, now_s = self._job, self._engine.now_s
        slow_down = job.slow_down(worker)
        forward_end_s = now_s + job.forward_s * slow_down
        backward_end_s = forward_end_s + job.backward_s * slow_down
        begun = self._begun[worker] = _Begun(now_s, iteration, forward_end_s, backward_end_s, len(job.gradients))
        for position, gradient in enumerate(job.gradients):
            is_proxied = position < job.num_proxy_gradients
            waits = job.ring_blocks_compute and not is_proxied
            ready_s = backward_end_s if waits else forward_end_s + gradient.ready_s * slow_down
            self._engine.at(ready_s, partial(self._push, worker, position))
        self._engine.at(backward_end_s, partial(self._end_backward, worker, begun))

    def _push(self, worker: int, position: int) -> None:
        split = self._job.num_proxy_gradients
        self._begun[worker].pushed_s[position] = self._engine.now_s
        if position < split:
            assert self._proxied is not None
            self._proxied.push(worker, position)
        else:
            assert self._ring is not None
            self._ring.push(worker, position - split)

    def _end_backward(self, worker: int, begun: "_Begun") -> None:
        begun.has_computed = True
        self._backward_ends[begun.iteration].append(self._engine.now_s)
        self._end_if_done(worker, begun)

    def _on_ring_synced(self, worker: int, position: int) -> None:
        self._on_synced(worker, position + self._job.num_proxy_gradients)

    def _on_synced(self, worker: int, position: int) -> None:
        begun = self._begun[worker]
        begun.num_unsynced -= 1
        self._num_synced += 1
        if self._recorder is not None:
            self._syncs.append(Sync(worker, position, begun.pushed_s[position], self._engine.now_s))
        if self._on_progress is not None:
            job = self._job
            self._on_progress(self._num_synced, len(job.gradients) * len(job.simulated_workers) * job.num_iterations)
        self._end_if_done(worker, begun)

    def _end_if_done(self, worker: int, begun: "_Begun") -> None:
        if begun.num_unsynced or not begun.has_computed:
            return
        ended = (worker, begun.iteration, begun.begin_s, begun.forward_end_s, begun.backward_end_s, self._engine.now_s)
        self._ended.append(ended)
        if begun.iteration + 1 < self._job.num_iterations:
            self._begin_iteration(worker, begun.iteration + 1)

    # --- the report

    def _rows(self) -> list[WorkerIteration]:
        rows = []
        for worker, iteration, begin_s, forward_end_s, backward_end_s, end_s in self._ended:
            last_s = max(self._backward_ends[iteration])
            rows.append(
                WorkerIteration(
                    worker=worker,
                    iteration=iteration,
                    begin_s=begin_s,
                    forward_end_s=forward_end_s,
                    backward_end_s=backward_end_s,
                    end_s=end_s,
                    idle_s=max(0.0, min(end_s, last_s) - backward_end_s),
                )
            )
        return sorted(rows, key=lambda row: (row.iteration, row.worker))


class _Begun:
    """The iteration that a worker is in."""

    def __init__(
        self,
        begin_s: float,
        iteration: int = 0,
        forward_end_s: float = 0.0,
        backward_end_s: float = 0.0,
        num_unsynced: int = 0,
    ) -> None:
        self.begin_s = begin_s
        self.iteration = iteration
        self.forward_end_s = forward_end_s
        self.backward_end_s = backward_end_s
        self.num_unsynced = num_unsynced
        self.has_computed = False
        self.pushed_s: dict[int, float] = {}
