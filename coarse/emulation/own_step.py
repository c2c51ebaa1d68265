"""Step of an emulated run, as a job for the simulator: its buckets, at the times when they were there.

All compute after the first wait of an iteration counts as forward: the optimizer's step and the data, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from coarse.emulation.account import Iteration, OwnStep, last_of_each
from coarse.emulation.other_modes import ClusterOf, in_other_modes
from coarse.protocol.dtypes import DType, Op
from coarse.simulation.job import Gradient, Job
from coarse.simulation.training import simulate
from coarse.strategy.rounds import By, Round

_NUM_ITERATIONS = 3


def own_step(
    job: Job, iterations: Sequence[Iteration], num_workers: int, cluster_of: ClusterOf | None = None,
    compute: float = 1.0,
) -> OwnStep | str:  # fmt: skip
    """Simulate the last iterations, each by itself.

    Args:
        job: Links, places and facts.
        iterations: Counted ones of all workers.
        num_workers: Their number.
        cluster_of: Function that returns the places of other modes, which are left out without it.
        compute: Factor on all compute.

    Returns:
        The means, or why there are none.
    """
    simulated, emulated, steps = [], [], []
    for rows in zip(*last_of_each(iterations, num_workers), strict=False):
        if len({tuple(push.name for push in row.pushes) for row in rows}) > 1:
            return "workers pushed other names"
        rows = tuple(row._replace(pushes=tuple(push for push in row.pushes if push.is_summed)) for row in rows)
        if not rows[0].pushes:
            return "its gradients were not summed as a whole, but gathered and scattered by torch itself"
        asked = _job_of(job, rows, compute)
        simulated.append(simulate(asked).iteration_s)
        steps.append(asked)
        emulated.append(fmean(row.end_s - row.begin_s for row in rows))
    if not simulated:
        return "there are too few iterations"
    others = () if cluster_of is None else tuple(in_other_modes(steps, cluster_of))
    return OwnStep(fmean(simulated), fmean(emulated), others)


def _job_of(job: Job, rows: Sequence[Iteration], compute: float) -> Job:
    """Return one iteration of all workers: the first one's times, scaled by the others' extra compute."""
    first = rows[0]
    backward_s = max(first.backward_s, first.pushes[-1].at_s - first.begin_s)
    gradients = tuple(
        Gradient(
            name=push.name,
            num_elements=push.num_elements,
            ready_s=min(push.at_s - first.begin_s, backward_s),
            dtype=DType(push.dtype),
            op=Op(push.op),
        )
        for push in first.pushes
    )
    return replace(
        job,
        facts=job.facts or ((),) * len(rows),
        gradients=gradients,
        round=Round(by=tuple(By.WORKERS if push.is_workers else By.DEVICES for push in first.pushes), hold_back=False),
        forward_s=first.forward_s,
        backward_s=backward_s,
        slow_downs=tuple(
            compute * (row.forward_s + row.backward_s) / (first.forward_s + backward_s) for row in rows
        ),
        num_iterations=_NUM_ITERATIONS,
    )
