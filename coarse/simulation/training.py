# Pure: no MPI, threads, clock or environment.
"""Workers that compute forward and backward and wait for their gradients, iteration by iteration."""

from collections.abc import Callable
from functools import partial

from coarse.simulation.adaptation import Adaptation, Decide, Profile, keep_tables
from coarse.simulation.compute import Compute
from coarse.simulation.engine import Engine
from coarse.simulation.job import Job
from coarse.simulation.meeting import Meeting
from coarse.simulation.proxied import Proxied
from coarse.simulation.recording import RecordingEngine
from coarse.simulation.report import Report, Sync, WorkerIteration, with_idle_times
from coarse.simulation.representative import ProxiedAlike, WorkerRingAlike
from coarse.simulation.worker_ring import WorkerRing
from coarse.strategy.rounds import By, SetOut, WorkerRounds

Progress = Callable[[int, int], None]
"""Function of (gradients that workers have got back in all iterations, all there are), for progress bars."""


def simulate(
    job: Job, *, on_progress: Progress | None = None, record: bool = False, decide: Decide = keep_tables
) -> Report:
    """Run a job to its end; deterministic: the same job gives the same report, to the last bit.

    `record` keeps a record of every port, link and adder, for timelines; it changes no time. `decide` chooses tables
    and split anew if the job profiles as it runs and finds that links have changed.
    """
    return _Training(job, on_progress, record, decide).run()


class _Training:
    def __init__(self, job: Job, on_progress: Progress | None, record: bool, decide: Decide) -> None:
        self._recorder = RecordingEngine(job.site.links) if record else None
        self._engine = self._recorder or Engine(job.site.links)
        self._on_progress = on_progress
        self._rounds = [WorkerRounds() for _ in job.simulated_workers]
        self._computes = [Compute(self._engine, job.ring_slow_down) for _ in job.simulated_workers]
        self._synchronise_as(job)
        self._meeting = self._prepared_meeting(decide) if 0 < job.profile_every < job.num_iterations else None
        self._profiles: list[Profile] = []
        self._engine.set_rates(job.rate_changes)
        self._begun = [_Begun(self._engine.now_s)] * len(job.simulated_workers)
        self._under_way: list[dict[int, _Begun]] = [{} for _ in job.simulated_workers]
        """Iteration whose gradients were pushed last, by worker and turn."""
        self._ended: list[WorkerIteration] = []
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
            iterations=tuple(with_idle_times(self._ended)),
            link_bytes={link.name: self._engine.bytes_moved(number) for number, link in enumerate(links)},
            num_events=self._engine.num_events,
            profiles=tuple(self._profiles),
            period=min(max(self._job.strategy.period, self._job.num_turns), self._job.num_iterations),
            syncs=tuple(self._syncs),
            recording=self._recorder.recording if self._recorder else None,
        )

    def _synchronise_as(self, job: Job) -> None:
        """Build the devices and the ring of a round, and register all names by these facts, as in a new epoch."""
        self._job = job
        devices, ring = (ProxiedAlike, WorkerRingAlike) if job.one_stands_for_all else (Proxied, WorkerRing)
        to_devices, to_workers = (job.places_by(by) for by in (By.DEVICES, By.WORKERS))
        self._proxied = devices(self._engine, job, to_devices, self._on_synced) if to_devices else None
        if self._proxied is not None:
            self._proxied.register()
        self._ring = ring(self._engine, job, to_workers, self._on_ring_synced) if to_workers else None
        if self._on_progress is not None:
            exchanged = (job.round_at(iteration).num_exchanged for iteration in range(job.num_iterations))
            self._num_to_sync = sum(exchanged) * len(job.simulated_workers)

    # --- profiling

    def _prepared_meeting(self, decide: Decide) -> Meeting:
        self._adaptation = Adaptation(self._job, decide)
        self._adaptation.suppose()
        return Meeting(self._engine, self._adaptation, self._job.num_workers, self._on_profiled)

    def _on_profiled(self, profile: Profile) -> None:
        self._profiles.append(profile)
        if profile.is_new:
            self._synchronise_as(self._adaptation.job)
        for worker in self._job.simulated_workers:
            self._begin_iteration(worker, profile.iteration)

    # --- one worker

    def _begin_iteration(self, worker: int, iteration: int) -> None:
        job, now_s = self._job, self._engine.now_s
        decided, moments = job.round_at(iteration), job.moments(worker, iteration)
        self._rounds[worker].begin(decided)
        forward_end_s = now_s + moments.forward_s
        backward_end_s = forward_end_s + moments.backward_s
        begun = self._begun[worker] = _Begun(now_s, iteration, forward_end_s, backward_end_s, decided.num_exchanged)
        begun.decode_s = moments.decode_s
        self._under_way[worker][iteration % job.num_turns] = begun
        ready = (  # rounding must not part the last from backward's end
            (min(forward_end_s + ready_s, backward_end_s), partial(self._on_gradient, worker, at))
            for at, ready_s in enumerate(moments.ready_s)
        )
        self._computes[worker].begin((*ready, (backward_end_s, partial(self._end_backward, worker, begun))))

    def _on_gradient(self, worker: int, position: int) -> None:
        self._set_out(worker, self._rounds[worker].on_ready(position))

    def _end_backward(self, worker: int, begun: "_Begun") -> None:
        self._set_out(worker, self._rounds[worker].on_backward_end())
        begun.backward_end_s = self._engine.now_s
        begun.has_computed = True  # a ring of one has ended by now, and must not end the iteration twice
        self._end_if_done(worker, begun)

    def _set_out(self, worker: int, buckets: list[SetOut]) -> None:
        begun = self._begun[worker]
        for position, by in buckets:
            begun.pushed_s[position] = self._engine.now_s
            place = self._job.place(position, begun.iteration)
            if by is By.DEVICES:
                assert self._proxied is not None
                self._proxied.push_gradient(worker, place)
            else:
                assert self._ring is not None
                self._computes[worker].on_ring_begun()
                self._ring.push(worker, place)

    def _on_ring_synced(self, worker: int, place: int) -> None:
        self._computes[worker].on_ring_ended()
        self._on_synced(worker, place)

    def _on_synced(self, worker: int, place: int) -> None:
        turn, position = divmod(place, len(self._job.gradients))
        begun = self._under_way[worker][turn]
        begun.num_unsynced -= 1
        self._num_synced += 1
        if self._recorder is not None:
            self._syncs.append(Sync(worker, position, begun.pushed_s[position], self._engine.now_s))
        if self._on_progress is not None:
            self._on_progress(self._num_synced, self._num_to_sync)
        self._end_if_done(worker, self._begun[worker])

    def _end_if_done(self, worker: int, begun: "_Begun") -> None:
        """End the iteration that a worker is in, if it has computed and the sums that its step applies are there."""
        applied = begun.iteration - self._job.lag
        if not begun.has_computed or begun.has_ended:
            return
        if applied >= 0 and self._under_way[worker][applied % self._job.num_turns].num_unsynced:
            return
        begun.has_ended = True
        if begun.decode_s and applied >= 0:
            self._engine.at(self._engine.now_s + begun.decode_s, partial(self._end, worker, begun))
        else:
            self._end(worker, begun)

    def _end(self, worker: int, begun: "_Begun") -> None:
        self._ended.append(
            WorkerIteration(
                worker=worker,
                iteration=begun.iteration,
                begin_s=begun.begin_s,
                forward_end_s=begun.forward_end_s,
                backward_end_s=begun.backward_end_s,
                end_s=self._engine.now_s,
                others_idle_s=self._job.others_idle_s(begun.iteration),
            )
        )
        following = begun.iteration + 1
        if following < self._job.num_iterations:
            if self._meeting is not None and following % self._job.profile_every == 0:
                self._meeting.arrive(following)
            else:
                self._begin_iteration(worker, following)


class _Begun:
    """Iteration that a worker is in."""

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
        self.has_computed = self.has_ended = False
        self.decode_s = 0.0
        self.pushed_s: dict[int, float] = {}
