"""Minibatches of an emulated run in mode odc, as a job for the simulator: reads and pushes by worker.

[Note: one model] Each call of `fully_shard` has made a model at the devices. They end together, and are simulated as
one.

[Note: whose compute] A worker's compute between two waits belongs to the earlier wait. A unit is fetched while the one
before it is computed, as FSDP2 asks for them; the first of a forward or a backward when it is read.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from coarse.emulation.account import MOST_STEPS, Iteration, Logged, OwnStep, Waited
from coarse.odc.layout import OdcDeclaration
from coarse.odc.simulation.by_collectives import Passed, in_collective_modes
from coarse.odc.simulation.machines import Act, Compute, PushPiece, Read, SimulatedOdc
from coarse.parallel.sharded.transfers import Phase
from coarse.simulation.job import Job

_WAIT, _END = "wait ", "end of "
_GATHERS = (Phase.FORWARD_GATHER, Phase.BACKWARD_GATHER)


def own_minibatches(
    job: Job, logs: Sequence[Logged], iterations: Sequence[Iteration], compute: float = 1.0, *,
    with_others: bool = False,
) -> OwnStep | str:  # fmt: skip
    """Simulate the last minibatches of a run, one after the other.

    Args:
        job: Links and places.
        logs: Logs of each worker.
        iterations: Counted iterations of all workers.
        compute: Factor on all compute.
        with_others: True if other modes are simulated, too.

    Returns:
        The means of a minibatch, or the reason why there are none.
    """
    options = logs[0].options
    if options.get("trees", 0) != 1:
        return "several models end their minibatches apart"
    declaration, names = _whole([*map(OdcDeclaration.of_text, options["declarations"])]), list(options["units"])
    if declaration is None:
        return "parts of the model are fetched by unlike workers, or in unlike ways"
    if len(declaration.members) < len(logs):
        return "some workers have no part of the model"
    end = next((waited.point for waited in logs[0].waits if waited.point.startswith(_END)), "")
    ends = [[number for number, waited in enumerate(log.waits) if waited.point == end] for log in logs]
    most = min(MOST_STEPS, len(iterations) // len(logs))
    count = min(most, min(map(len, ends)) - 1)
    if count < 1:
        return "there are too few iterations"
    minibatches = [
        [log.waits[first : past + 1] for first, past in pairwise(own[-count - 1 :])]
        for log, own in zip(logs, ends, strict=True)
    ]
    passed = [[_passed(waits, compute) for waits in own] for own in minibatches]
    acts = [[_acts_of(each, names) for each in own] for own in passed]
    work = [[acts[member][number] for member in declaration.members] for number in range(count)]
    run = SimulatedOdc(job.placement, declaration, job.site).run([work[0], *work])
    simulated = [last - first for first, last in zip(run.called_s[0], run.called_s[-1], strict=True)]
    emulated = [own[-1][-1].at_s - own[0][0].at_s for own in minibatches]
    others = in_collective_modes(job, declaration, names, passed) if with_others else ()
    return OwnStep(fmean(simulated) / count, fmean(emulated) / count, others)


def _whole(parts: Sequence[OdcDeclaration]) -> OdcDeclaration | None:
    """Return one model of all units of the calls of `fully_shard`; None where their models differ."""
    first = parts[0]
    if any(replace(part, units=first.units) != first for part in parts):
        return None
    units = tuple(unit for part in parts for unit in part.units)
    return replace(first, units=units, num_slots=sum(part.num_slots for part in parts))


def _passed(waits: Sequence[Waited], compute: float) -> list[Passed]:
    """Return a worker's waits and computes between two ends of minibatches; see [Note: whose compute]."""
    found = []
    for waited, following in pairwise(waits):
        name, seconds = waited.point.removeprefix(_WAIT), compute * (following.computed_s - waited.computed_s)
        phase = next((phase for phase in Phase if name.startswith(f"{phase} of ")), None)
        found.append(Passed(phase, name.removeprefix(f"{phase} of "), seconds))
    return found


def _acts_of(passed: Sequence[Passed], names: Sequence[str]) -> list[Act]:
    """Return the acts for the simulator; waits that belong to no unit are left out."""
    found: list[Act] = []
    for number, each in enumerate(passed):
        if each.phase in _GATHERS:
            found.append(Read(names.index(each.unit), _following(passed, number, names)))
        elif each.phase is not None:
            found.append(PushPiece(names.index(each.unit)))
        found.append(Compute(each.seconds))
    return found


def _following(passed: Sequence[Passed], number: int, names: Sequence[str]) -> int | None:
    """Return the unit that is fetched after a read: the next one of its pass."""
    following = next((each for each in passed[number + 1 :] if each.phase in _GATHERS), None)
    if following is None or following.phase is not passed[number].phase:
        return None
    return names.index(following.unit)
