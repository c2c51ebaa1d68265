# Pure: no MPI, threads, clock or environment.
"""Operators of forward as a reader of the model knows them: the outermost ones, in their modules."""

from typing import NamedTuple

from coarse.cli.own_model.traces.kineto_events import Event, Thread
from coarse.cli.own_model.traces.kineto_steps import Step

_ATEN = "aten::"
_MODULE = "nn.Module: "


class Operator(NamedTuple):
    """Operator that forward called."""

    label: str
    """Name such as linear, or Linear_3.linear if the trace has modules (with_stack, with_modules)."""
    number: int
    """Number of its event."""
    begin_us: float


def outer_operators(step: Step) -> dict[int, Operator]:
    """Return the outermost aten operator around each one that made a function of backward.

    The keys are sequence numbers.
    """
    wanted = {event.number: sequence for sequence, event in step.forward.items()}
    open_events: dict[Thread, list[Event]] = {}
    found = {}
    for event in step.operators:
        stack = open_events.setdefault(event.thread, [])
        while stack and stack[-1].end_us <= event.begin_us:
            stack.pop()
        stack.append(event)
        if event.number in wanted:
            found[wanted[event.number]] = _operator(stack)
    return found


def _operator(stack: list[Event]) -> Operator:
    outermost = next((event for event in stack if event.name.startswith(_ATEN)), stack[-1])
    modules = [event.name.removeprefix(_MODULE) for event in stack if event.name.startswith(_MODULE)]
    name = outermost.name.removeprefix(_ATEN)
    return Operator(f"{modules[-1]}.{name}" if modules else name, outermost.number, outermost.begin_us)
