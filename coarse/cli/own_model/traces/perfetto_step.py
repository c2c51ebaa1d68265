# Pure: no MPI, threads, clock or environment.
"""Step that `coarse predict` wrote for Perfetto: phases of workers, and gradients being sent.

A gradient in it is a bucket: small neighbours are fused before they are sent. The chosen worker is the middle one by
the time of its compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coarse.cli.own_model.traces.step import TracedGradient, TracedStep
from coarse.errors import ConfigError

PHASE, SYNC = "phase", "sync"
FORWARD, BACKWARD = "forward", "backward"
READY = "ready_s"
"""Argument of a sent gradient: seconds from the begin of backward until it was ready."""
US_PER_S = 1e6
_FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class SentGradient:
    """Gradient, or bucket of gradients, of one worker, in seconds since the trace began."""

    name: str
    nbytes: int
    begin_s: float
    """Time at which it was sent."""
    end_s: float
    """Time at which its sum was there."""
    ready_s: float
    """Seconds from the begin of backward until it was ready."""


@dataclass(kw_only=True)
class WorkerStep:
    """Step of one worker."""

    name: str
    forward: tuple[float, float] | None = None
    """Begin and end, seconds."""
    backward: tuple[float, float] | None = None
    gradients: list[SentGradient] = field(default_factory=list)

    @property
    def compute_s(self) -> float:
        """Seconds of forward and backward; 0 for an absent one."""
        return sum(span[1] - span[0] for span in (self.forward, self.backward) if span)


def is_ours(events: Sequence[object]) -> bool:
    """Return whether coarse wrote a trace: some event is a phase."""
    return any(isinstance(event, dict) and event.get("cat") == PHASE for event in events)


def workers_of(events: Sequence[object], where: str) -> list[WorkerStep]:
    """Return the workers of a trace in their order.

    Raise ConfigError, with its number, for an event without a time or bytes.
    """
    names: dict[object, str] = {}
    found: dict[object, WorkerStep] = {}
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise _wrong(where, number, f"it must be an object, got {type(event).__name__}")
        args, kind = event.get("args"), event.get("cat")
        args = args if isinstance(args, dict) else {}
        if event.get("ph") == "M" and event.get("name") == "process_name":
            names[event.get("pid")] = str(args.get("name", ""))
        if event.get("ph") != "X" or kind not in (PHASE, SYNC):
            continue
        worker = found.setdefault(event.get("pid"), WorkerStep(name=names.get(event.get("pid"), "")))
        begin_s = _number(event, "ts", where, number) / US_PER_S
        end_s = begin_s + _number(event, "dur", where, number) / US_PER_S
        if kind == PHASE and event.get("name") == FORWARD:
            worker.forward = worker.forward or (begin_s, end_s)
        elif kind == PHASE and event.get("name") == BACKWARD:
            worker.backward = worker.backward or (begin_s, end_s)
        elif kind == SYNC:
            worker.gradients.append(_gradient(event, args, begin_s, end_s, where, number))
    for worker in found.values():
        _settle(worker)
    return list(found.values())


def perfetto_step(events: Sequence[object], where: str) -> TracedStep:
    """Return the step of the middle worker; forward lasts 0 s if no span is one.

    Raises:
        ConfigError: a trace without gradients or without a pass.
    """
    workers = [worker for worker in workers_of(events, where) if worker.backward]
    complete = [worker for worker in workers if worker.gradients]
    if not complete:
        what = f"phases of {len(workers)} workers, and no gradient" if workers else "no worker with a backward"
        raise ConfigError(
            f"{where}: the trace has {what}; take MODE.trace.json of `coarse predict`, which has both", key="model"
        )
    worker = sorted(complete, key=lambda each: each.compute_s)[(len(complete) - 1) // 2]
    assert worker.backward is not None, "workers without it are left out"
    begin_s, end_s = worker.forward or (0.0, 0.0)
    of_many = f", the middle one of {len(complete)} by its compute" if len(complete) > 1 else ""
    return TracedStep(
        gradients=tuple(
            TracedGradient(
                shape=(-(-each.nbytes // _FP32_BYTES),), ready=each.ready_s, layer=each.name, operator=number,
                name=each.name,
            )
            for number, each in enumerate(worker.gradients)
        ),
        forward=end_s - begin_s, backward=worker.backward[1] - worker.backward[0],
        is_simulated=True, gpu="the traced worker",
        which=f"the iteration of {worker.name!r}{of_many}", counted="as coarse wrote them",
        notes=("A gradient is a bucket as it was sent; its parts are not in the trace.",),
    )  # fmt: skip


def _gradient(
    event: Mapping[str, Any], args: Mapping[str, Any], begin_s: float, end_s: float, where: str, number: int
) -> SentGradient:
    nbytes, ready_s = args.get("nbytes"), args.get(READY)
    if type(nbytes) is not int or nbytes < 0:
        raise _wrong(where, number, f"nbytes must be a number of bytes, got {nbytes!r}")
    name = str(event.get("name", "")).removeprefix(f"{SYNC} ")
    known_s = float(ready_s) if isinstance(ready_s, int | float) else -1.0
    return SentGradient(name=name, nbytes=nbytes, begin_s=begin_s, end_s=end_s, ready_s=known_s)


def _settle(worker: WorkerStep) -> None:
    """Drop gradients of an earlier iteration, and sort the others in the order of backward.

    A gradient without a ready time counts as ready when it was sent.
    """
    first = worker.forward or worker.backward or (0.0, 0.0)
    begin_s = worker.backward[0] if worker.backward else 0.0
    worker.gradients = sorted(
        (
            each if each.ready_s >= 0 else SentGradient(
                name=each.name, nbytes=each.nbytes, begin_s=each.begin_s, end_s=each.end_s,
                ready_s=max(0.0, each.begin_s - begin_s),
            )
            for each in worker.gradients
            if each.begin_s >= first[0]
        ),
        key=lambda each: each.ready_s,
    )  # fmt: skip


def _number(event: Mapping[str, Any], key: str, where: str, number: int) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or (key == "dur" and value < 0):
        raise _wrong(where, number, f"{key} must be microseconds, got {value!r}")
    return float(value)


def _wrong(where: str, number: int, what: str) -> ConfigError:
    return ConfigError(f"{where}: event {number}: {what}; make the trace again", key="model")
