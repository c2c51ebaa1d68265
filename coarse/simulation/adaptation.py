# Pure: no MPI, threads, clock or environment.
"""Measuring again while a job runs, and what follows: tables, routes and split (COARSE III-E and III-F).

Every so many iterations all workers meet and look: a few probe batches that load every way at once. Where all took as
long as the last time, that is all. Else the links to blame are estimated, and the ways that they changed are probed at
two sizes. Where the estimate holds there, it is taken for all sizes, else all are measured as before the first
iteration; then the job is decided again on what is known now.

What is measured is said here once, by generators that give probe batches and are sent their seconds; a simulated and an
emulated job carry them out, each on links of its own.
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
"""Iterations between two looks, by default.

A look takes up to 2 % of an iteration as short as those of benchmarks/degradation.py, so a tenth of that here; one
after which a change was found 3 to 5 % of one, and as much as a whole profile where the estimate of its links does not
hold.
"""
CHANGE_TOLERANCE = 0.05
"""Relative difference from the last time above which a transfer has changed."""
_LOOK_BYTES = 512 * KIB
"""Enough that the rate counts and not the start-up; so little that looking costs next to nothing."""
_SMALL_BYTES = 32 * KIB
"""Bytes of the second probe by which an estimate is held: here a start-up counts as much as a rate."""

Seconds = tuple[float, ...]
Result = TypeVar("Result")
Measuring = Generator[ProbeBatch, Seconds, Result]
Decide = Callable[[Job], Job]
"""Function that returns the same job with the tables and the split that its policy chooses on these links."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One meeting at which a running job was profiled."""

    iteration: int
    """The one that begins afterwards."""
    begin_s: float
    """Second of the run."""
    end_s: float
    num_changed: int
    """Transfers that took another time than the last time."""
    facts: tuple[Facts, ...]
    """Those in use afterwards."""
    by: tuple[str, ...]
    """Summer of each gradient afterwards: "devices" or "workers"."""
    is_new: bool
    """True if facts or round are others than before."""

    @property
    def duration_s(self) -> float:
        """Seconds that it cost."""
        return self.end_s - self.begin_s

    @classmethod
    def between(
        cls, before: Job, after: Job, *, iteration: int, begin_s: float, end_s: float, num_changed: int
    ) -> "Profile":
        """Return the profile of a meeting between two decisions on a job."""
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
        """Gradients that the devices sum afterwards."""
        return self.by.count(By.DEVICES.value)


def keep_tables(job: Job) -> Job:
    """Return the job with its measured tables alone decided."""
    return job


class Adaptation:
    """State of a job's links while it runs, and the job as it was decided last."""

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
        """Take what the model of the links says for measured: before the first iteration, without any cost."""
        for client, probing in enumerate(self._probings):
            self._seconds[client] = {probe: probe_s(self._model, client, probe) for probe in probing.probes()}

    def measure_all(self) -> Measuring[tuple[Facts, ...]]:
        """Measure all, by all clients in turn, before the first iteration; return their facts.

        `job` takes them, as its strategy says.
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
        """Look between two iterations, and return how many transfers have changed; then `job` is decided anew."""
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
        """Measure the ways that are not what they were, as far as the estimated links tell."""
        for client, probing in enumerate(self._probings):
            for device in probing.devices:
                look = ProbeCopy(device, self._look_bytes)
                if is_other(probe_s(estimated, client, look), self._seconds[client][look]):
                    yield from self._measure_way(client, probing, device, estimated)

    def _measure_way(self, client: int, probing: Probing, device: int, estimated: Site) -> Measuring[None]:
        """Measure one way at the sizes by which its estimate is held; at all if that does not hold."""
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
        """A size that every profile measures."""
        sizes = self._probings[0].sizes
        return max([size for size in sizes if size <= _LOOK_BYTES], default=sizes[0])


def look_probe_batches(placement: Placement, site: Site, nbytes: int) -> Iterator[ProbeBatch]:
    """Yield probe batches: every client with one device at once, until each had all; then each ring, each way."""
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
    """Return whether two times differ by more than what repeated measurements do."""
    return abs(now_s - before_s) > CHANGE_TOLERANCE * before_s


def drive(measuring: Measuring[Result], measure: Callable[[ProbeBatch], Seconds]) -> Result:
    """Carry out what is to be measured, one probe batch after the other."""
    seconds: Seconds | None = None
    while True:
        try:
            probe_batch = next(measuring) if seconds is None else measuring.send(seconds)
        except StopIteration as end:
            result: Result = end.value
            return result
        seconds = measure(probe_batch)
