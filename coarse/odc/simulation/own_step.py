"""The minibatches of an emulated run in mode odc, as a job for the simulator: what each worker read and pushed.

[Note: one model] Each call of `fully_shard` has made a model at the devices. They end together, and are simulated as
one.

[Note: whose compute] What a worker computes between two waits follows what it waited for. A unit is fetched while the
one before it is computed, as FSDP2 asks for them; the first of a forward or a backward when it is read.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from coarse.emulation.account import MOST_STEPS, Iteration, Logged, OwnStep, Waited
from coarse.odc.layout import OdcDeclaration
from coarse.odc.simulation.machines import Act, Compute, PushPiece, Read, SimulatedOdc
from coarse.parallel.sharded.transfers import Phase
from coarse.simulation.job import Job

_WAIT, _END = "wait ", "end of "
_GATHERS = (Phase.FORWARD_GATHER, Phase.BACKWARD_GATHER)
_Event = tuple[Phase, str]
"""What a worker waited for, and of which unit."""


def own_minibatches(
    job: Job, logs: Sequence[Logged], iterations: Sequence[Iteration], compute: float = 1.0
) -> OwnStep | str:
    """Simulate the last minibatches of a run, one after the other.

    Args:
        job: Links and places.
        logs: Each worker's.
        iterations: Counted ones of all workers.
        compute: Factor on all compute.

    Returns:
        The means of a minibatch, or why there are none.
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
    acts = [[_acts_of(waits, names, compute) for waits in own] for own in minibatches]
    work = [[acts[member][number] for member in declaration.members] for number in range(count)]
    run = SimulatedOdc(job.placement, declaration, job.site).run([work[0], *work])
    simulated = [last - first for first, last in zip(run.called_s[0], run.called_s[-1], strict=True)]
    emulated = [own[-1][-1].at_s - own[0][0].at_s for own in minibatches]
    return OwnStep(fmean(simulated) / count, fmean(emulated) / count)


def _whole(parts: Sequence[OdcDeclaration]) -> OdcDeclaration | None:
    """Return one model of all units that calls of `fully_shard` have made models of; None where these differ."""
    first = parts[0]
    if any(replace(part, units=first.units) != first for part in parts):
        return None
    units = tuple(unit for part in parts for unit in part.units)
    return replace(first, units=units, num_slots=sum(part.num_slots for part in parts))


def _acts_of(waits: Sequence[Waited], names: Sequence[str], compute: float) -> list[Act]:
    """Return what a worker did from one end of a minibatch to the next: see [Note: whose compute]. Other waits than for
    the model are left out."""
    events = [_event_of(waited) for waited in waits[:-1]]
    found: list[Act] = []
    for number, (event, (waited, following)) in enumerate(zip(events, pairwise(waits), strict=True)):
        if event is not None:
            phase, unit = event
            place, is_read = names.index(unit), phase in _GATHERS
            found.append(Read(place, _following(events, number, names)) if is_read else PushPiece(place))
        found.append(Compute(compute * (following.computed_s - waited.computed_s)))
    return found


def _event_of(waited: Waited) -> _Event | None:
    """Return what was waited for; None of all but a unit."""
    name = waited.point.removeprefix(_WAIT)
    found = [(phase, name.removeprefix(f"{phase} of ")) for phase in Phase if name.startswith(f"{phase} of ")]
    return found[0] if found else None


def _following(events: Sequence[_Event | None], number: int, names: Sequence[str]) -> int | None:
    """Return the unit that is fetched after a read: the next one of its pass."""
    own = events[number]
    following = next((event for event in events[number + 1 :] if event is not None and event[0] in _GATHERS), None)
    if own is None or following is None or following[0] is not own[0]:
        return None
    return names.index(following[1])
