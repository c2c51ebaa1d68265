# Pure: no MPI, threads, clock or environment.
"""How many buckets of a live job go to the memory devices, decided from what its first steps measured (COARSE III-F).

The job is simulated on a site of two links: one gives every bucket back the time that memory devices took for so many
bytes, the other what an all-reduce of the workers took. Both were measured with all workers taking part, so two
simulated workers stand for any number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from coarse.client.dual_sync import IterationTimes, SyncRates, best_proxy_bytes, split_keys
from coarse.hardware.links import Link, rising
from coarse.hardware.quantities import SizeTable
from coarse.protocol.plan import Placement, RoutingTable
from coarse.simulation.job import Gradient, Job
from coarse.simulation.policies import with_best_split
from coarse.simulation.site import Site
from coarse.simulation.training import simulate

LEAST_GAIN = 0.02
"""Share of an iteration below which a simulated gain is within what measurements tell: the devices take all then."""
_WORKERS = range(2)
_WHOLE = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=2**63 - 1)
_PLACEMENT = Placement(
    client_nodes=(0, 0),
    device_nodes=(0,),
    local_proxies=(0, 0),
    ranks=(0, 1, 2),
    collective="in_place",
    num_sync_groups=1,
)


@dataclass(frozen=True, kw_only=True)
class MeasuredWays:
    """(bytes, seconds) until all workers hold a sum, by rising bytes; the mean over workers."""

    devices: SizeTable
    """Summed by the memory devices."""
    workers: SizeTable
    """Summed by the workers' all-reduce."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Seconds of a step all of whose buckets went to the memory devices; the mean over workers."""

    forward_s: float
    """T_FP: from the end of the step before to the first gradient."""
    backward_s: float
    """T_BP: from the first gradient to the last."""
    step_s: float
    """From one synchronisation's end to the next one's."""
    ready_s: tuple[float, ...]
    """Of each bucket, in the order of backward: from the first gradient until it was complete."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A decision: the first `num_to_devices` buckets go to the memory devices, the others to the workers."""

    num_to_devices: int
    simulated_s: float
    """An iteration with it."""
    simulated_all_s: float
    """An iteration of which the devices take all."""


def choose_split(
    policy: str, nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays, num_workers: int
) -> Split:
    """The split of buckets of `nbytes` each, in the order of backward: "paper" minimises T_train of COARSE III-F,
    "auto" simulates the iteration. The same numbers give the same split on every worker.
    """
    job = measured_job(nbytes, step, ways, len(nbytes))
    best, best_s = len(nbytes), _iteration_s(job)
    all_s, worth_s = best_s, best_s * (1 - LEAST_GAIN)
    if policy == "paper":
        best = measured_paper_split(nbytes, step, ways, num_workers)
        best_s = _iteration_s(replace(job, num_proxy_gradients=best))
    elif least_s(nbytes, step, ways) < worth_s:
        chosen = with_best_split(job)
        if (chosen_s := _iteration_s(chosen)) <= worth_s:
            best, best_s = chosen.num_proxy_gradients, chosen_s
    return Split(num_to_devices=best, simulated_s=best_s, simulated_all_s=all_s)


def least_s(nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays) -> float:
    """No iteration of which the workers sum anything is shorter: their sum of the last bucket follows backward."""
    half = measured_link("half", _halved(ways.workers))
    return step.forward_s + step.backward_s + 2 * half.alone_s(nbytes[-1] // 8 * 4)


def measured_paper_split(nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays, num_workers: int) -> int:
    """Buckets for the devices by T_train, each side's bandwidth being what its largest measured sum comes to.

    The paper has as many devices as workers, each of which sends 2(p-1)/p of the bytes. So the rates here are those at
    which such rings would take as long as was measured, whatever the devices' number and way to add.
    """
    sent = 2 * (num_workers - 1) / num_workers
    proxy, worker = (sent * table[-1][0] / table[-1][1] for table in (ways.devices, ways.workers))
    rates = SyncRates(
        num_workers=num_workers, num_devices=num_workers, worker_bytes_per_s=worker, proxy_bytes_per_s=proxy
    )
    times = IterationTimes(forward_s=step.forward_s, backward_s=step.backward_s)
    return split_keys(nbytes, best_proxy_bytes(sum(nbytes), times, rates))


def measured_job(nbytes: Sequence[int], step: MeasuredStep, ways: MeasuredWays, num_to_devices: int) -> Job:
    """The job to simulate. A bucket that was complete before an earlier one counts as complete with it."""
    ready_s = (min(at_s, step.backward_s) for at_s in accumulate(step.ready_s, max))
    return Job(
        site=measured_site(ways),
        placement=_PLACEMENT,
        tables=(_WHOLE, _WHOLE),
        gradients=tuple(
            Gradient(name=f"bucket {index}", num_elements=max(1, count // 4), ready_s=at_s)
            for index, (count, at_s) in enumerate(zip(nbytes, ready_s, strict=True))
        ),
        forward_s=step.forward_s,
        backward_s=step.backward_s,
        num_proxy_gradients=num_to_devices,
        num_iterations=1,
    )


def measured_site(ways: MeasuredWays) -> Site:
    """Two workers and a device whose links give back the measured seconds: pushing takes what the whole way took, and
    each of the two sends of a ring of two carries half of the bytes in half of the time."""
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
    """A link on which a transfer alone takes the measured seconds; where more bytes took no longer, the fewer are left
    out. The latency is where the line through the two smallest sizes meets 0 bytes."""
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


def _iteration_s(job: Job) -> float:
    return simulate(job).iteration_s
