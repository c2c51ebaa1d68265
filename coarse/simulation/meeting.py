# Pure: no MPI, threads, clock or environment.
"""Profiling of a simulated job in virtual time, for which all workers pause between two iterations."""

from collections.abc import Callable
from functools import partial

from coarse.simulation.adaptation import Adaptation, Profile, Seconds
from coarse.simulation.engine import Engine
from coarse.simulation.probe_batches import ProbeBatch


class Meeting:
    """Pause of all workers: from the arrival of the last one to the end of the measurements."""

    def __init__(
        self, engine: Engine, adaptation: Adaptation, num_workers: int, on_end: Callable[[Profile], None]
    ) -> None:
        self._engine = engine
        self._adaptation = adaptation
        self._num_workers = num_workers
        self._on_end = on_end
        self._num_here = 0
        self._iteration = 0

    def arrive(self, iteration: int) -> None:
        """Note that a worker has ended all that comes before this iteration; the last one begins the checks."""
        self._num_here += 1
        self._iteration = iteration
        if self._num_here == self._num_workers:
            self._num_here = 0
            self._begin_s = self._engine.now_s
            self._before = self._adaptation.job
            self._measuring = self._adaptation.look()
            self._fire(next(self._measuring))

    def _fire(self, probe_batch: ProbeBatch) -> None:
        site, began_s = self._adaptation.job.site, self._engine.now_s
        ends_s: dict[int, float] = {}

        def arrived(number: int) -> None:
            ends_s[number] = self._engine.now_s - began_s
            if len(ends_s) == len(probe_batch.sends):
                self._go_on(tuple(ends_s[each] for each in range(len(probe_batch.sends))))

        for number, send in enumerate(probe_batch.sends):
            self._engine.move(send.port, send.path(site), probe_batch.nbytes, partial(arrived, number))

    def _go_on(self, seconds: Seconds) -> None:
        try:
            probe_batch = self._measuring.send(seconds)
        except StopIteration as end:
            self._end(end.value)
        else:
            self._fire(probe_batch)

    def _end(self, num_changed: int) -> None:
        profile = Profile.between(
            self._before,
            self._adaptation.job,
            iteration=self._iteration,
            begin_s=self._begin_s,
            end_s=self._engine.now_s,
            num_changed=num_changed,
        )
        self._on_end(profile)
