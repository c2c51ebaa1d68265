# Pure: no MPI, threads, clock or environment.
"""Strategies' view of a modelled job: its iterations are simulated on the links that it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from coarse.hardware.links import Link
from coarse.protocol.plan import Cluster, Facts
from coarse.protocol.units import MIB
from coarse.simulation.job import Job
from coarse.simulation.profiling import ring_bytes_per_s
from coarse.simulation.report import Report
from coarse.simulation.sites import Path, Site
from coarse.simulation.training import simulate
from coarse.strategy.dual_sync import SyncRates
from coarse.strategy.rounds import Round
from coarse.strategy.strategy import StepTimes, Strategy, require_round

Simulate = Callable[[Job], Report]

_RING_BYTES = 4 * MIB
"""Bytes that ring neighbours exchange when the profiler measures BW_proxy and BW_GPU."""


class SiteView:
    """View of a job on its site, with facts that were measured there; see View."""

    def __init__(self, job: Job, run: Simulate = simulate) -> None:
        """Look at a job; `run` simulates the strategy's trials."""
        self._job = job
        self._run = run

    @property
    def least_gain(self) -> float:
        """Share of an iteration below which a gain counts as none: 0, since all is modelled."""
        return 0.0

    @property
    def least_shared_s(self) -> float:
        """Lower bound of an iteration of which the workers sum a part: 0, for unknown."""
        return 0.0

    @property
    def cluster(self) -> Cluster:
        """Workers and memory devices of the job."""
        return self._job.placement.cluster

    @property
    def facts(self) -> tuple[Facts, ...]:
        """Facts of each worker."""
        return self._job.facts

    @cached_property
    def nbytes(self) -> Sequence[int]:
        """Bytes of each bucket, in the order of backward."""
        return [gradient.nbytes for gradient in self._job.gradients]

    @property
    def step(self) -> StepTimes:
        """Times of a worker's step."""
        job = self._job
        ready_s = tuple(gradient.ready_s for gradient in job.gradients)
        return StepTimes(forward_s=job.forward_s, backward_s=job.backward_s, ready_s=ready_s)

    @cached_property
    def rates(self) -> SyncRates:
        """Members and bandwidths of both rings, measured before training, when no others use the links."""
        site = alone(self._job.site)
        return SyncRates(
            num_workers=self._job.num_workers,
            num_devices=self._job.placement.num_devices,
            worker_bytes_per_s=_ring_rate(site.links, site.between_workers),
            proxy_bytes_per_s=_ring_rate(site.links, site.between_devices),
        )

    def iteration_s(self, decided: Round, *, iterations: int = 1) -> float:
        """Return seconds of an iteration with these rounds, simulated on the links of the site.

        `iterations` are simulated, and as many more as the sums' lag needs.
        """
        count = iterations + 2 * self._job.lag  # until as many rounds are under way as may be
        return self._run(replace(decided_job(self._job, decided), num_iterations=count)).iteration_s


def decided_job(job: Job, decided: Round) -> Job:
    """Return the job with a round, and the facts that it has in place of the job's."""
    facts = job.facts if decided.facts is None else decided.facts
    return replace(job, facts=facts, round=replace(decided, facts=None))


def decide(job: Job, strategy: Strategy, run: Simulate = simulate) -> Job:
    """Return the job as a strategy decides it on the links that it has."""
    view = SiteView(job, run)
    return decided_job(job, require_round(strategy, strategy.decide(view), len(view.nbytes)))


def alone(site: Site) -> Site:
    """Return the site as measurements find it: before training, when no others use the links."""
    return replace(site, links=site.alone_links or site.links)


def _ring_rate(links: Sequence[Link], paths: Mapping[tuple[int, int], Path]) -> float:
    """Return the bytes per second of a ring's members; any number for a ring of one, which sends nothing."""
    hops = _ring_hops(paths)
    return ring_bytes_per_s(links, hops, _RING_BYTES) if hops else 1.0


def _ring_hops(paths: Mapping[tuple[int, int], Path]) -> list[Path]:
    """Return every member's way to its next, or that of the first if it stands for all."""
    num_members = 1 + max((max(ends) for ends in paths), default=0)
    return [paths[m, (m + 1) % num_members] for m in range(num_members) if (m, (m + 1) % num_members) in paths]
