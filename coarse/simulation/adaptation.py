# Pure: no MPI, threads, clock or environment.
"""Repeated measurement of a running job, and new tables, routes and split (COARSE III-E and III-F).

Every so many iterations all workers pause and check: a few probe batches load every way at once. If all took as long as
the last time, nothing follows. Else the rates of the slow links are estimated, and the ways that they changed are
probed at two sizes. If the estimate holds there, it is taken for all sizes, else all are measured as before the first
iteration. Then the job is decided again on what is known now.

The measurements are stated here once, by generators that yield probe batches and are sent their seconds. A simulated
and an emulated job carry them out, each on its own links.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from coarse.client.probing import ProbeCopy, Probing
from coarse.hardware.links import Link
from coarse.protocol.plan import Facts, Placement
from coarse.protocol.units import KIB
from coarse.simulation.job import Job
from coarse.simulation.probe_batches import ProbeBatch, ProbeTransfer, batch_of_probe, probe_batch_s
from coarse.simulation.profiling import probe_s, probings
from coarse.simulation.sites import Site, reachable_proxies
from coarse.simulation.slow_links import estimated_links
from coarse.strategy.rounds import By

PROFILE_EVERY = 10
"""Default number of iterations between two checks. A check takes up to 2 % of an iteration as short as those of
benchmarks/degradation.py, so a tenth of that here. One after which a change was found takes 3 to 5 % of an
iteration, and as much as a whole profile if the estimate of its links does not hold."""
CHANGE_TOLERANCE = 0.05
"""Relative difference from the last time above which a transfer has changed."""
_LOOK_BYTES = 512 * KIB
"""Bytes of each transfer of a check: the rate counts there, not the start-up, and it is cheap."""
_SMALL_BYTES = 32 * KIB
"""Bytes of the second probe that verifies an estimate: here a start-up counts as much as a rate."""

Seconds = tuple[float, ...]
Result = TypeVar("Result")
Measuring = Generator[ProbeBatch, Seconds, Result]
Decide = Callable[[Job], Job]
"""Function that returns the job with the tables and the split that its policy chooses on these links."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Record of one profiling of a running job."""

    iteration: int
    """Iteration that begins afterwards."""
    begin_s: float
    """Second of the run."""
    end_s: float
    num_changed: int
    """Number of transfers that took another time than the last time."""
    facts: tuple[Facts, ...]
    """Facts in use afterwards."""
    by: tuple[str, ...]
    """Members that sum each gradient afterwards: "devices" or "workers"."""
    is_new: bool
    """True if facts or round differ from those before."""

    @property
    def duration_s(self) -> float:
        """Seconds that the profiling took."""
        return self.end_s - self.begin_s

    @classmethod
    def between(
        cls, before: Job, after: Job, *, iteration: int, begin_s: float, end_s: float, num_changed: int
    ) -> "Profile":
        """Return the record of a profiling, from the job as decided before and after it."""
        return cls(
            iteration=iteration,
            begin_s=begin_s,
            end_s=end_s,
            num_changed=num_changed,
            facts=after.facts,
            by=tuple(by.value for by in after.round.by),
            is_new=(after.facts, after.round) != (before.facts, before.round),
        )

    @property
    def num_to_devices(self) -> int:
        """Number of gradients that the devices sum afterwards."""
        return self.by.count(By.DEVICES.value)


def keep_tables(job: Job) -> Job:
    """Return the job unchanged: decide nothing beyond the measured tables."""
    return job


class Adaptation:
    """Knowledge of a job's links while it runs, and the job as it was decided last."""

    def __init__(self, job: Job, decide: Decide = keep_tables) -> None:
        self.job = job
        self._model = job.site
        self._decide = decide
        placement = job.placement
        self._probings = probings(placement.cluster, job.strategy.probes)
        self._seconds: list[dict[ProbeCopy, float]] = [{} for _ in self._probings]
        self._looks = tuple(look_probe_batches(placement, job.site, self._look_bytes))
        self._looked: tuple[Seconds, ...] = ()

    def suppose(self) -> None:
        """Take the times of the links' model as measured: before the first iteration, without any cost."""
        for client, probing in enumerate(self._probings):
            self._seconds[client] = {probe: probe_s(self._model, client, probe) for probe in probing.probes()}

    def measure_all(self) -> Measuring[tuple[Facts, ...]]:
        """Have all clients in turn measure everything, before the first iteration, and return their facts.

        `job` takes the facts, as its strategy says.
        """
        for client, probing in enumerate(self._probings):
            for probe in probing.probes():
                self._seconds[client][probe] = max((yield batch_of_probe(client, probe)))
        measured, job = self._facts(), self.job
        again = job.strategy.measured_again
        used = again(job.facts, measured, job.placement.cluster) if job.facts else measured
        self.job = replace(job, facts=used)
        return measured

    def look(self) -> Measuring[int]:
        """Check between two iterations, and return how many transfers have changed.

        `job` is decided anew if any has.
        """
        looked: list[Seconds] = []
        for probe_batch in self._looks:
            looked.append((yield probe_batch))
        before = self._looked or tuple(probe_batch_s(self._model, probe_batch) for probe_batch in self._looks)
        num_changed = sum(
            is_other(now_s, before_s)
            for now, then in zip(looked, before, strict=True)
            for now_s, before_s in zip(now, then, strict=True)
        )
        if num_changed:
            self._looked = tuple(looked)
            links = estimated_links(self._model, list(zip(self._looks, looked, strict=True)))
            yield from self._measure_changed(replace(self._model, links=links))
            self._decide_on(links)
        return num_changed

    def _measure_changed(self, estimated: Site) -> Measuring[None]:
        """Measure the ways that have changed, as far as the estimated links tell."""
        for client, probing in enumerate(self._probings):
            for device in probing.devices:
                look = ProbeCopy(device, self._look_bytes)
                if is_other(probe_s(estimated, client, look), self._seconds[client][look]):
                    yield from self._measure_way(client, probing, device, estimated)

    def _measure_way(self, client: int, probing: Probing, device: int, estimated: Site) -> Measuring[None]:
        """Measure one way, at the sizes that verify its estimate; at all sizes if the estimate does not hold."""
        expected_s = {probe: probe_s(estimated, client, probe) for probe in probing.probes_of(device)}
        held = [ProbeCopy(device, nbytes) for nbytes in probing.sizes if nbytes in (_SMALL_BYTES, self._look_bytes)]
        measured_s: dict[ProbeCopy, float] = {}
        for probe in held:
            measured_s[probe] = max((yield batch_of_probe(client, probe)))
        if any(is_other(seconds, expected_s[probe]) for probe, seconds in measured_s.items()):
            for probe in expected_s:
                measured_s[probe] = max((yield batch_of_probe(client, probe)))
        self._seconds[client].update(expected_s | measured_s)

    def _decide_on(self, links: tuple[Link, ...]) -> None:
        site = replace(self._model, links=links)
        trial = replace(self.job, site=site, facts=self._facts(), rate_changes=(), profile_every=0)
        decided = self._decide(trial)
        self.job = replace(self.job, facts=decided.facts, round=decided.round)

    def _facts(self) -> tuple[Facts, ...]:
        job = self.job
        return tuple(
            probing.facts(seconds, job.strategy, client, job.placement.cluster)
            for client, (probing, seconds) in enumerate(zip(self._probings, self._seconds, strict=True))
        )

    @property
    def _look_bytes(self) -> int:
        """Bytes that every profile measures."""
        sizes = self._probings[0].sizes
        return max([size for size in sizes if size <= _LOOK_BYTES], default=sizes[0])


def look_probe_batches(placement: Placement, site: Site, nbytes: int) -> Iterator[ProbeBatch]:
    """Yield probe batches: every client with one of its devices at once, then each ring in each direction.

    The clients' probe batches go on until each client has had all of its devices.
    """
    reachable = reachable_proxies(placement)
    for shift in range(max(map(len, reachable), default=0)):
        sends: list[ProbeTransfer] = []
        for client, devices in enumerate(reachable):
            if shift < len(devices):
                first = devices.index(placement.local_proxies[client])
                device = devices[(first + shift) % len(devices)]
                sends += [ProbeTransfer("push", client, device), ProbeTransfer("pull", device, client)]
        yield ProbeBatch(tuple(sends), nbytes, 0)
    for way, paths, num_members in (
        ("devices", site.between_devices, placement.num_devices),
        ("workers", site.between_workers, placement.num_clients),
    ):
        for hop in sorted({1 % num_members, -1 % num_members} - {0}) if num_members else ():
            hops = [(member, (member + hop) % num_members) for member in range(num_members)]
            if all(ends in paths for ends in hops):
                yield ProbeBatch(tuple(ProbeTransfer(way, *ends) for ends in hops), nbytes, 0)


def is_other(now_s: float, before_s: float) -> bool:
    """Return whether two times differ by more than repeated measurements do."""
    return abs(now_s - before_s) > CHANGE_TOLERANCE * before_s


def drive(measuring: Measuring[Result], measure: Callable[[ProbeBatch], Seconds]) -> Result:
    """Carry out measurements, one probe batch after the other, and return their result."""
    seconds: Seconds | None = None
    while True:
        try:
            probe_batch = next(measuring) if seconds is None else measuring.send(seconds)
        except StopIteration as end:
            result: Result = end.value
            return result
        seconds = measure(probe_batch)
