"""Step of sharded training of an emulated run, as a job for the simulator: units with their times.

[Note: whose compute] A worker's compute after it has waited for a unit belongs to that unit: a backward too whose
parameters stayed since forward, and the loss to the last unit's forward. Its compute after the last reduction, the
optimizer's step and the data, comes at the end. Of several workers that differ the slowest counts between each two
waits, since there the others wait for it.

[Note: agreements] Live workers agree once a forward on what has changed, and replicas meet before each reduction. The
simulator has neither: they are simulated alone, and added, for all wait for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from coarse.collectives.shape import Collective
from coarse.emulation.account import Iteration, Logged, OwnStep, Push, Waited, last_of_each
from coarse.emulation.joints import chain_of
from coarse.parallel.sharded.transfers import Phase
from coarse.protocol.joint import CollectiveKind, Joint
from coarse.simulation.engine import Engine
from coarse.simulation.job import Job
from coarse.simulation.sharded.chains import Stream
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.queues import PhaseQueue, run_chain
from coarse.simulation.sharded.routes import SiteRoutes
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import COLLECTIVE, SHARDINGS, SIMULATED

_WAIT = "wait "
_ROOT = "root"
_TAIL = (Phase.REDUCE_SCATTER, "")
_Slot = tuple[Phase, str]
"""Pass, and the unit that is computed; the tail is the compute after all units."""


def own_sharded_step(
    job: Job, logs: Sequence[Logged], iterations: Sequence[Iteration], compute: float = 1.0, *,
    with_others: bool = False,
) -> OwnStep | str:  # fmt: skip
    """Simulate the last iterations, each by itself.

    Args:
        job: Links and places.
        logs: Each worker's.
        iterations: Counted ones of all workers.
        compute: Factor on all compute.
        with_others: Whether other modes are simulated, too.

    Returns:
        The means, or why there are none.
    """
    mode, options = logs[0].mode, dict(logs[0].options)
    if mode not in SIMULATED:
        return "a sharded mode of a file"
    collective = Collective(str(options.pop("collective")))
    sharding = SHARDINGS[mode](**options)
    if options.get("quantised"):
        return "gathers of int8 are not simulated as they run"
    workers = tuple(range(len(logs)))
    routes = SiteRoutes(site=job.site, workers=workers, worker_nodes=job.placement.cluster.worker_nodes)
    modes = dict.fromkeys((mode, *COLLECTIVE)) if with_others else (mode,)
    simulated: dict[str, list[float]] = {name: [] for name in modes}
    emulated = []
    for rows in zip(*last_of_each(iterations, len(logs)), strict=False):
        near = len(routes.nodes[0])
        passes = [_Pass(log, row, len(workers), near) for log, row in zip(logs, rows, strict=True)]
        if any(each.slots != passes[0].slots for each in passes):
            return "workers computed other units"
        if not passes[0].nbytes:
            return "nothing is gathered, since each worker holds the whole model"
        computed_s = {slot: compute * seconds for slot, seconds in _slowest_s(passes).items()}
        besides_s = computed_s.get(_TAIL, 0.0) + sum(_alone_s(routes, call) for call in passes[0].agreements)
        for name, found in simulated.items():
            policy = ShardedPolicy(sharding=sharding if name == mode else SHARDINGS[name](), collective=collective)
            asked = ShardedJob(
                units=_units(passes[0], computed_s), routes=routes, policy=policy, ring_slow_down=job.ring_slow_down
            )
            found.append(simulate_sharded(asked).iteration_s + besides_s)
        emulated.append(fmean(row.end_s - row.begin_s for row in rows))
    if not emulated:
        return "there are too few iterations"
    means = {name: fmean(found) for name, found in simulated.items()}
    return OwnStep(means.pop(mode), fmean(emulated), tuple(means.items()))


class _Pass:
    """Iteration of one worker: see [Note: whose compute]."""

    def __init__(self, log: Logged, row: Iteration, num_workers: int, num_near: int) -> None:
        """Share the iteration's compute out; `num_near` is the number of workers of a node."""
        self._num_workers, self._num_near = num_workers, num_near
        self.nbytes: dict[str, int] = {}
        """Bytes by unit, in forward order."""
        self.is_trained: dict[str, bool] = {}
        self.slots: list[_Slot] = []
        self.computed_s: list[float] = []
        """Seconds of compute between waits, as `slots`: from a wait until the next."""
        self.agreements: list[Push] = []
        """Calls that are of no unit: see [Note: agreements]."""
        calls = [push for push in log.pushes if row.begin_s <= push.at_s < row.end_s]
        waits = [waited for waited in log.waits if row.begin_s <= waited.at_s < row.end_s]
        for call in calls:
            self._note_call(call)
        self._share_out(waits, calls[0].computed_s + row.compute_s)

    def _note_call(self, call: Push) -> None:
        if call.kind == CollectiveKind.BARRIER or (call.kind == CollectiveKind.ALL_REDUCE and not call.is_workers):
            self.agreements.append(call)
            return
        for phase in Phase:
            if not call.name.startswith(f"{phase} of "):
                continue
            unit = call.name.removeprefix(f"{phase} of ")
            if phase is Phase.REDUCE_SCATTER:
                self.is_trained[unit] = True
                self.nbytes[unit] = call.nbytes
            elif phase is Phase.FORWARD_GATHER:
                is_near = call.kind != CollectiveKind.ALL_GATHER
                self.nbytes[unit] = call.nbytes * (self._num_near if is_near else self._num_workers)

    def _share_out(self, waits: Sequence[Waited], end_s: float) -> None:
        """Give the compute between waits to units."""
        last = max((n for n, each in enumerate(waits) if Phase.REDUCE_SCATTER in each.point), default=len(waits))
        slot: _Slot | None = None
        for number, (waited, past) in enumerate(pairwise([*waits, Waited(0.0, end_s, "")])):
            name = waited.point.removeprefix(_WAIT)
            for phase in (Phase.FORWARD_GATHER, Phase.BACKWARD_GATHER):
                if name.startswith(f"{phase} of "):
                    slot = phase, name.removeprefix(f"{phase} of ")
            found = slot if slot is not None and number < last else _TAIL
            self.slots.append(found)
            self.computed_s.append(past.computed_s - waited.computed_s)


def _alone_s(routes: SiteRoutes, call: Push) -> float:
    """Return the seconds of a call that meets no other."""
    engine = Engine(routes.links)
    queues = {stream: PhaseQueue(engine, stream) for stream in Stream}
    joints = [Joint(CollectiveKind(call.kind), call.nbytes, is_ring=False)] * len(call.members)
    run_chain(queues, chain_of(joints, replace(routes, workers=tuple(call.members))), "", "", lambda: None)
    engine.run()
    return engine.now_s


def _slowest_s(passes: Sequence[_Pass]) -> dict[_Slot, float]:
    """Return seconds of each unit's passes: between each two waits those of the slowest worker."""
    found: dict[_Slot, float] = {}
    for slot, *seconds in zip(passes[0].slots, *(each.computed_s for each in passes), strict=True):
        found[slot] = found.get(slot, 0.0) + max(seconds)
    return found


def _units(first: _Pass, computed_s: Mapping[_Slot, float]) -> tuple[Unit, ...]:
    """Return units in forward order."""
    return tuple(
        Unit(
            name=name,
            trainable_nbytes=nbytes if first.is_trained.get(name) else 0,
            frozen_nbytes=0 if first.is_trained.get(name) else nbytes,
            forward_s=computed_s.get((Phase.FORWARD_GATHER, name), 0.0),
            backward_s=computed_s.get((Phase.BACKWARD_GATHER, name), 0.0),
            is_of_root=name == _ROOT,
        )
        for name, nbytes in first.nbytes.items()
    )
