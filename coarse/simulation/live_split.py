# Pure: no MPI, threads, clock or environment.
"""Strategies' view of a live job, from measurements of its first steps (COARSE III-F).

The job is simulated on a site of two links: one gives every bucket back the time that memory devices took for so many
bytes, the other the time of an all-reduce of the workers. Both were measured with all workers taking part, so two
simulated workers stand for any number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from coarse.hardware.links import Link, rising
from coarse.hardware.quantities import SizeTable
from coarse.protocol import override
from coarse.protocol.plan import Placement
from coarse.simulation.job import Gradient, Job
from coarse.simulation.sites import Site
from coarse.simulation.view import SiteView
from coarse.strategy.builtin import Coarse
from coarse.strategy.dual_sync import SyncRates
from coarse.strategy.rounds import Round, first_to_devices
from coarse.strategy.routing import RoutingTable

LEAST_GAIN = 0.02
"""Share of an iteration below which a simulated gain is within measurement noise. The devices take all then."""
_WORKERS = range(2)
_WHOLE = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=2**63 - 1)
_PLACEMENT = Placement(
    client_nodes=(0, 0),
    device_nodes=(0,),
    local_proxies=(0, 0),
    ranks=(0, 1, 2),
    planner=Coarse(),
    num_sync_groups=1,
)


@dataclass(frozen=True, kw_only=True)
class MeasuredWays:
    """Seconds until all workers hold a sum, as (bytes, seconds) by rising bytes; the mean over workers."""

    devices: SizeTable
    """Times of sums by the memory devices."""
    workers: SizeTable
    """Times of sums by the workers' all-reduce."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Seconds of a step all of whose buckets went to the memory devices; the mean over workers."""

    forward_s: float
    """Seconds from the end of the step before to the first gradient: T_FP."""
    backward_s: float
    """Seconds from the first gradient to the last: T_BP."""
    step_s: float
    """Seconds from one synchronisation's end to the next one's."""
    ready_s: tuple[float, ...]
    """Seconds from the first gradient until each bucket was complete, in the order of backward."""


class MeasuredView(SiteView):
    """View of buckets of `nbytes` each, in the order of backward; see View.

    Equal numbers lead to equal decisions on every worker.
    """

    def __init__(
        self, nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays, num_workers: int, lag: int = 0
    ) -> None:
        super().__init__(measured_job(nbytes, step, ways, lag))
        self._ways = ways
        self._all_workers = num_workers
        self._known_s: dict[tuple[Round, int], float] = {}

    @property
    @override
    def least_gain(self) -> float:
        return LEAST_GAIN

    @property
    def least_shared_s(self) -> float:
        """Seconds of forward, backward and the workers' sum of the last bucket, which follows backward."""
        step, half = self.step, measured_link("half", _halved(self._ways.workers))
        return step.forward_s + step.backward_s + 2 * half.alone_s(self.nbytes[-1] // 8 * 4)

    @cached_property
    def rates(self) -> SyncRates:
        """Bandwidth of each side, that of its largest measured sum.

        The paper has as many devices as workers, each of which sends 2(p-1)/p of the bytes. So the rates here are those
        at which such rings would take as long as was measured, for any number of devices and any way to add.
        """
        num_workers = self._all_workers
        sent = 2 * (num_workers - 1) / num_workers
        proxy, worker = (sent * table[-1][0] / table[-1][1] for table in (self._ways.devices, self._ways.workers))
        return SyncRates(
            num_workers=num_workers, num_devices=num_workers, worker_bytes_per_s=worker, proxy_bytes_per_s=proxy
        )

    @override
    def iteration_s(self, decided: Round, *, iterations: int = 1) -> float:
        known = decided, iterations
        if known not in self._known_s:
            self._known_s[known] = super().iteration_s(decided, iterations=iterations)
        return self._known_s[known]


def measured_job(nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays, lag: int = 0) -> Job:
    """Return the job to simulate, all of it on the devices.

    A bucket that was complete before an earlier one counts as complete with it.
    """
    ready_s = (min(at_s, step.backward_s) for at_s in accumulate(step.ready_s, max))
    return Job(
        site=measured_site(ways),
        placement=_PLACEMENT,
        facts=(_WHOLE, _WHOLE),
        gradients=tuple(
            Gradient(name=f"bucket {index}", num_elements=max(1, count // 4), ready_s=at_s)
            for index, (count, at_s) in enumerate(zip(nbytes, ready_s, strict=True))
        ),
        forward_s=step.forward_s,
        backward_s=step.backward_s,
        round=first_to_devices(len(nbytes), len(nbytes)),
        num_iterations=1,
        lag=lag,
    )


def measured_site(ways: MeasuredWays) -> Site:
    """Return a site of two workers and a device whose links give back the measured seconds.

    A push takes the time of the whole way, and each of the two sends of a ring of two carries half of the bytes in half
    of the time.
    """
    push = [measured_link(f"worker {worker} to the devices", ways.devices) for worker in _WORKERS]
    ring = [measured_link(f"worker {worker} to the next", _halved(ways.workers)) for worker in _WORKERS]
    return Site(
        links=(*push, *ring),
        push={(worker, 0): (worker,) for worker in _WORKERS},
        pull={(worker, 0): () for worker in _WORKERS},
        between_devices={},
        between_workers={(0, 1): (2,), (1, 0): (3,)},
        adder_bytes_per_s=math.inf,
    )


def measured_link(name: str, table: SizeTable) -> Link:
    """Return a link on which a transfer alone takes the measured seconds.

    If more bytes took no longer, the fewer are left out. The latency is where the line through the two smallest sizes
    meets 0 bytes.
    """
    rows = rising(table)
    latency_s = 0.0
    if len(rows) > 1:
        (small, small_s), (large, large_s) = rows[:2]
        latency_s = max(0.0, small_s - small * (large_s - small_s) / (large - small))
    streaming = tuple((nbytes, seconds - latency_s) for nbytes, seconds in rows)
    fastest = max(nbytes / seconds for nbytes, seconds in streaming)
    return Link(name=name, latency_s=latency_s, bytes_per_s=fastest, table=streaming)


def _halved(table: SizeTable) -> SizeTable:
    return tuple((nbytes // 2, seconds / 2) for nbytes, seconds in table)

