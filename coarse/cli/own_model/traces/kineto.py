# Pure: no MPI, threads, clock or environment.
"""Step that torch.profiler traced: its gradients, their times in backward, and their operators.

[Note: sizes of gradients] AccumulateGrad's input is a gradient, and has its shape and type if record_shapes is on. If
it is off, collectives of NCCL state how many elements they sum (record_param_comms): a gradient is then a bucket of
DDP, or a buffer that FSDP reduces and scatters, of the size that was sent, ready when its collective was requested.

[Note: reentrant checkpoints] torch.utils.checkpoint with use_reentrant=True runs backward within backward, up to its
own copies of its inputs, whose AccumulateGrad looks like that of a parameter. Then shapes do not say what is sent, and
collectives do, if there are any.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coarse.cli.own_model.traces.kineto_clock import StepClock, clock_of
from coarse.cli.own_model.traces.kineto_events import ACCUMULATE, Event, events_of, is_reduction
from coarse.cli.own_model.traces.kineto_operators import Operator, outer_operators
from coarse.cli.own_model.traces.kineto_steps import Step, step_of
from coarse.cli.own_model.traces.step import TracedGradient, TracedStep
from coarse.errors import ConfigError

_ITEMSIZES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complexfloat": 8,
    "complex<float>": 8,
}  # fmt: skip
_CHECKPOINT = "CheckpointFunctionBackward"


def kineto_step(document: Mapping[str, Any], where: str, number: int | None) -> TracedStep:
    """Return the chosen step of a trace; see `kineto_steps`.

    Raises:
        ConfigError: a trace that lacks a backward or sizes, or that contradicts itself; it says what to pass to the
            profiler.
    """
    events = events_of(document, where)
    step = step_of(events, number)
    threads = {event.thread for event in (*step.functions, *(e for e in step.operators if e.sequence is not None))}
    clock = clock_of(events, step.forward_begin_us, step.backward_end_us, threads)
    begin_s, backward_s = clock.at_s(step.forward_begin_us), clock.at_s(step.backward_begin_us)
    accumulated = step.accumulated
    notes: list[str] = []
    is_reentrant = _is_within_checkpoint(step, accumulated)
    if any("Input Dims" in event.args for event in accumulated) and not is_reentrant:
        gradients = list(_parameters(step, accumulated, clock, where))
        notes += _checked_buckets(step, gradients, where)
        notes += _dtype_note(accumulated)
        notes.append("Shapes are those of AccumulateGrad's inputs (measured in trace).")
    else:
        gradients = list(_buckets(step, clock, where))
        why = "Checkpoints of activations are reentrant" if is_reentrant else "The trace has no shapes"
        notes.append(
            f"{why}, so each gradient is a bucket as large as its collective (measured in trace): "
            "what is in it, and when its parts were there, is not known."
        )
        if not gradients and is_reentrant:
            raise ConfigError(
                f"{where}: {step.window.label} runs backward within backward (event {accumulated[0].number} and "
                "others), and so has gradients of activations that look like those of parameters; trace again with "
                "torch.utils.checkpoint.checkpoint(use_reentrant=False)",
                key="model",
            )
        if not gradients:
            raise ConfigError(
                f"{where}: {step.window.label} has {len(accumulated)} gradients without their sizes (event "
                f"{accumulated[0].number}, {ACCUMULATE}, has no Input Dims), and no collective that says how much it "
                "sums; trace again with torch.profiler.profile(record_shapes=True)",
                key="model",
            )
    notes += _notes_of_others(step)
    return TracedStep(
        gradients=tuple(gradients), forward=max(0.0, backward_s - begin_s),
        backward=max(0.0, clock.at_s(step.backward_end_us) - backward_s), gpu=clock.gpu,
        which=f"{step.window.label} ({step.how_chosen})", counted=clock.counted, notes=tuple(notes),
    )  # fmt: skip


def _is_within_checkpoint(step: Step, accumulated: Sequence[Event]) -> bool:
    """Return whether a reentrant checkpoint made a gradient; see [Note: reentrant checkpoints]."""
    outer = [each for each in step.functions if each.name.endswith(_CHECKPOINT)]
    return any(each.begin_us < event.begin_us < each.end_us for each in outer for event in accumulated)


def _parameters(
    step: Step, accumulated: Sequence[Event], clock: StepClock, where: str
) -> Iterator[TracedGradient]:
    """Yield a gradient for each parameter, by shapes."""
    layers = _Layers(step, accumulated, clock)
    begin_s = clock.at_s(step.backward_begin_us)
    found = False
    for event in accumulated:
        dims, types = event.args.get("Input Dims"), event.args.get("Input type")
        shape = dims[0] if isinstance(dims, list) and dims else None
        dtype = str(types[0]) if isinstance(types, list) and types else ""
        if shape == [] and not dtype:
            continue  # autograd had no gradient for this parameter
        if not isinstance(shape, list) or not all(type(part) is int and part >= 0 for part in shape):
            raise ConfigError(
                f"{where}: event {event.number} ({event.name}): Input Dims must be shapes, got {dims!r}; trace again "
                "with torch.profiler.profile(record_shapes=True)",
                key="model",
            )
        label, operator, forward_s = layers.of(event)
        ready = max(0.0, clock.at_s(event.end_us) - begin_s)
        yield TracedGradient(shape=tuple(shape), ready=ready, layer=label, operator=operator, forward=forward_s)
        found = True
    if not found:
        raise ConfigError(
            f"{where}: {step.window.label}: no {ACCUMULATE} of {len(accumulated)} had a tensor as its input (event "
            f"{accumulated[0].number}), so no parameter got a gradient; trace a step that trains some",
            key="model",
        )


class _Layers:
    """Operators of forward that gradients belong to, with their times."""

    def __init__(self, step: Step, accumulated: Sequence[Event], clock: StepClock) -> None:
        self._functions = [each for each in step.functions if each.sequence is not None]
        self._begins_us = [each.begin_us for each in self._functions]
        self._operators = outer_operators(step)
        used = {found.begin_us for event in accumulated if (found := self._operator(event)) is not None}
        begins_us = [step.forward_begin_us, *sorted(used)[1:]]
        ends_us = [min(end_us, step.backward_begin_us) for end_us in (*begins_us[1:], step.backward_begin_us)]
        self._forward_s = {
            key: max(0.0, clock.at_s(end_us) - clock.at_s(begin_us))
            for key, begin_us, end_us in zip(sorted(used), begins_us, ends_us, strict=False)
        }

    def of(self, accumulated: Event) -> tuple[str, int, float]:
        """Return (name, event, seconds) of a gradient's operator.

        The seconds include the operators after it that have no gradient.
        """
        found = self._operator(accumulated)
        if found is None:
            return "gradient", accumulated.number, 0.0
        return found.label, found.number, self._forward_s[found.begin_us]

    def _operator(self, accumulated: Event) -> Operator | None:
        """Return the operator that made the last function of backward before this gradient, if known."""
        index = bisect_left(self._begins_us, accumulated.begin_us) - 1
        return self._operators.get(self._functions[index].sequence or 0) if index >= 0 else None


def _buckets(step: Step, clock: StepClock, where: str) -> Iterator[TracedGradient]:
    """Yield a gradient for each collective of backward, of its size; see [Note: sizes of gradients]."""
    begin_s = clock.at_s(step.backward_begin_us)
    for number, (event, num_elements) in enumerate(_reduced(step, where)):
        ready = max(0.0, clock.at_s(event.begin_us) - begin_s)
        yield TracedGradient(shape=(num_elements,), ready=ready, layer="bucket", operator=number)


def _reduced(step: Step, where: str) -> Iterator[tuple[Event, int]]:
    """Yield (collective, elements) for each one that sums numbers during a pass that sends gradients."""
    for event in step.operators:
        if not is_reduction(event) or not any(begin <= event.begin_us <= end for begin, end in step.spans):
            continue
        name, dtype = str(event.args["Collective name"]), str(event.args.get("dtype", "")).lower()
        num_elements = event.args.get("In msg nelems")
        if type(num_elements) is not int or num_elements < 0:
            raise ConfigError(
                f"{where}: event {event.number} ({name}): In msg nelems must be a number of elements, got "
                f"{num_elements!r}; export the trace again",
                key="model",
            )
        nbytes = event.args.get("In msg size")
        if type(nbytes) is int and dtype in _ITEMSIZES and nbytes != num_elements * _ITEMSIZES[dtype]:
            raise ConfigError(
                f"{where}: event {event.number} ({name}) contradicts itself: In msg nelems is {num_elements} of "
                f"{dtype}, {num_elements * _ITEMSIZES[dtype]} bytes, and In msg size is {nbytes}; export the trace "
                "again",
                key="model",
            )
        if num_elements:
            yield event, num_elements


def _notes_of_others(step: Step) -> Iterator[str]:
    """Yield sentences on passes and steps of the trace that are left out, or counted differently."""
    num_sending = len(step.spans)
    if num_sending > 1:
        yield (
            f"The step has {step.num_passes} backward passes, of which {num_sending} send gradients, of several models "
            "or before an optimizer's step each: all of these count, a parameter as often as it is sent. What ran "
            "before the first counts as forward, and what ran between them as backward (assumption)."
        )
    elif step.num_passes > 1:
        yield (
            f"The step has {step.num_passes} backward passes: gradients are those of the last, and what ran before it "
            "counts as forward (assumption)."
        )
    if step.num_unlike and not step.is_marked:
        yield (
            f"{step.num_unlike} of {step.num_steps} steps have other gradients than the one that is taken, and are "
            "left out; where they are of another model that is trained in turn, mark whole steps by profiler.step()."
        )


def _checked_buckets(step: Step, gradients: Sequence[TracedGradient], where: str) -> Iterator[str]:
    """Yield a sentence if collectives of backward sum another number of elements than gradients have."""
    summed = sum(num_elements for _, num_elements in _reduced(step, where))
    num_elements = sum(math.prod(gradient.shape) for gradient in gradients)
    if summed and summed != num_elements:
        yield (
            f"Collectives of the traced backward sum {summed:,} elements, and its gradients have {num_elements:,}: "
            "what coarse sends are the gradients (assumption)."
        )


def _dtype_note(accumulated: Sequence[Event]) -> Iterator[str]:
    """Yield a sentence if gradients had another type than float32."""
    types = Counter(str(types[0]) for event in accumulated if (types := event.args.get("Input type")))
    others = {name: num for name, num in types.items() if name not in ("float", "")}
    if others:
        listed = ", ".join(f"{num} of {name}" for name, num in others.items())
        yield f"In the trace gradients were {listed}; coarse sends float32, as for all models (assumption)."
