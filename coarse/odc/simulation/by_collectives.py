"""Minibatches of an emulated run in mode odc, simulated in the modes that work by collectives.

[Note: lockstep] There all workers compute the same units at once, so the slowest worker counts for each unit and
microbatch; these modes have no minibatches of unequally many microbatches.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from coarse.collectives.shape import Collective
from coarse.odc.layout import OdcDeclaration
from coarse.parallel.sharded.transfers import Phase
from coarse.simulation.job import Job
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.routes import SiteRoutes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import COLLECTIVE, SHARDINGS

_ROOT = "root"


class Passed(NamedTuple):
    """Wait and compute of a worker that have passed."""

    phase: Phase | None
    """Phase; None if it belongs to no unit."""
    unit: str
    seconds: float


class _Microbatch:
    """Seconds of each unit of one worker, in the order in which forward came to them."""

    def __init__(self) -> None:
        self.forward_s: dict[str, float] = {}
        self.backward_s: dict[str, float] = {}

    def add(self, passed: Passed) -> None:
        """Add the compute of a unit."""
        found = self.forward_s if passed.phase is Phase.FORWARD_GATHER else self.backward_s
        found[passed.unit] = found.get(passed.unit, 0.0) + passed.seconds


def in_collective_modes(
    job: Job, declaration: OdcDeclaration, names: Sequence[str], minibatches: Sequence[Sequence[Sequence[Passed]]]
) -> tuple[tuple[str, float], ...]:
    """Return each mode with its mean seconds of a minibatch.

    It returns nothing where workers had unequally many microbatches.

    Args:
        job: Links and places.
        declaration: The model.
        names: Its units.
        minibatches: Waits and computes by worker and minibatch.
    """
    nbytes = {
        name: (len(declaration.members) * unit.shard_nbytes, bool(unit.segments))
        for name, unit in zip(names, declaration.units, strict=True)
    }
    routes = SiteRoutes(
        site=job.site, workers=declaration.members, worker_nodes=job.placement.cluster.worker_nodes
    )
    found: dict[str, list[float]] = {name: [] for name in COLLECTIVE}
    for workers in zip(*minibatches, strict=True):
        besides_s, microbatches = zip(*map(_split, workers), strict=True)
        if len({tuple(tuple(each.forward_s) for each in own) for own in microbatches}) > 1:
            return ()
        for name, seconds in found.items():
            policy = ShardedPolicy(sharding=SHARDINGS[name](), collective=Collective.HIERARCHICAL)
            jobs = [
                ShardedJob(units=_units(together, nbytes), routes=routes, policy=policy)
                for together in zip(*microbatches, strict=True)
            ]
            seconds.append(max(besides_s) + sum(simulate_sharded(one).iteration_s for one in jobs))
    return tuple((name, fmean(seconds)) for name, seconds in found.items())


def _split(passed: Sequence[Passed]) -> tuple[float, list[_Microbatch]]:
    """Return the seconds that belong to no unit, and the microbatches, each beginning with a forward."""
    besides_s, found, is_in_forward = 0.0, list[_Microbatch](), False
    for each in passed:
        if each.phase is None:
            besides_s += each.seconds
            continue
        if each.phase is Phase.FORWARD_GATHER and not is_in_forward:
            found.append(_Microbatch())
        is_in_forward = each.phase is Phase.FORWARD_GATHER
        if found:
            found[-1].add(each)
    return besides_s, found


def _units(workers: Sequence[_Microbatch], nbytes: dict[str, tuple[int, bool]]) -> tuple[Unit, ...]:
    """Return a microbatch's units, each with the slowest worker's seconds."""
    return tuple(
        Unit(
            name=name,
            trainable_nbytes=nbytes[name][0] if nbytes[name][1] else 0,
            frozen_nbytes=0 if nbytes[name][1] else nbytes[name][0],
            forward_s=max(each.forward_s[name] for each in workers),
            backward_s=max(each.backward_s.get(name, 0.0) for each in workers),
            is_of_root=name == _ROOT,
        )
        for name in workers[0].forward_s
    )
