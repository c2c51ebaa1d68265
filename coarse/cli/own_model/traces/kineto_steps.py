# Pure: no MPI, threads, clock or environment.
"""Choice of a step of a Kineto trace, and the times of its forward and backward.

[Note: which step] ProfilerStep#N marks a step; without such marks each Optimizer.step ends one, and without these the
trace is one. Steps with a backward count if they have as many gradients as most. The median of these by duration is
taken, or the faster of the middle two of an even number. --step N takes another.

[Note: passes] Backward is what autograd's engine runs. An operator of forward that begins between two of its functions
parts two passes. A pass of a microbatch sends nothing, as DDP under no_sync: a later one has a gradient of each of its
shapes, and no optimizer steps between the two. Gradients of other shapes are those of another model, as a GAN's or a
critic's, and are sent; so are all before an optimizer's step. If a trace has no shapes, a pass with a collective that
sums sends. Work before the first pass that sends counts as forward, and work between passes as backward.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coarse.cli.own_model.traces.kineto_events import ACCUMULATE, EVALUATE, STEP, Event, Events, is_reduction
from coarse.errors import ConfigError

_OPTIMIZER = "Optimizer.step#"
_BEFORE_FORWARD = ("Optimizer.", "enumerate(DataLoader)")
_HOW = (
    "trace a whole step, forward, loss.backward() and the optimizer, by torch.profiler.profile(activities=["
    "ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)"
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Time of one step on the host."""

    number: int
    label: str
    begin_us: float
    end_us: float
    of_process: object = None
    """Process of the step, if known: a trace may have several."""

    @property
    def duration_us(self) -> float:
        """Microseconds from begin to end."""
        return self.end_us - self.begin_us


@dataclass(frozen=True, kw_only=True)
class Step:
    """Operators of a step, and the passes that autograd made."""

    window: Window
    how_chosen: str
    operators: Sequence[Event]
    functions: Sequence[Event]
    """Functions of backward, from the first pass that sends gradients to the last; see [Note: passes]."""
    accumulated: Sequence[Event]
    """Events in which autograd wrote the gradients that are sent. In a trace that was thinned out, the engine's own
    events stand for them."""
    spans: Sequence[tuple[float, float]]
    """Begin and end of each pass that sends."""
    forward: Mapping[int, Event]
    """Operator that made a function of backward, by its sequence number."""
    num_passes: int
    forward_begin_us: float
    num_unlike: int
    """Steps of the trace whose gradients have other shapes."""
    num_steps: int
    """Steps of the trace with a backward."""
    is_marked: bool

    @property
    def backward_begin_us(self) -> float:
        """Begin of the first pass that sends."""
        return self.functions[0].begin_us

    @property
    def backward_end_us(self) -> float:
        """End of the last pass."""
        return max(end_us for _, end_us in self.spans)


def step_of(events: Events, number: int | None) -> Step:
    """Return the chosen step; see [Note: which step].

    Raises:
        ConfigError: no operators, no backward, or no step of that number; it says what to pass to the profiler.
    """
    where = events.where
    if not any(event.category.lower() in ("cpu_op", "operator") for event in events.operators):
        raise ConfigError(
            f"{where}: the trace has no operators of the host (events of category cpu_op), from which the order of "
            f"gradients would follow; {_HOW}",
            key="model",
        )
    counted = [(window, _num_gradients(events, window)) for window in _windows(events)]
    trained = candidates = [(window, num) for window, num in counted if num]
    if number is not None and number not in [window.number for window, _ in counted]:
        known = ", ".join(str(window.number) for window, _ in counted)
        raise ConfigError(f"{where}: --step {number} is not in the trace, which has {known}; choose one", key="step")
    if number is not None:
        candidates = [(window, num) for window, num in candidates if window.number == number]
    if not candidates:
        what = f"step {number}" if number is not None else "the trace"
        raise ConfigError(
            f"{where}: {what} has no backward pass (no {ACCUMULATE}), as a trace of inference; {_HOW}", key="model"
        )
    usual = max(Counter(num for _, num in candidates).items(), key=lambda item: (item[1], item[0]))[0]
    usual_ones = sorted((window for window, num in candidates if num == usual), key=lambda window: window.duration_us)
    window = usual_ones[(len(usual_ones) - 1) // 2]
    if number is not None:
        how = "as asked"
    elif len(usual_ones) == 1:
        how = "the only one with a backward" if len(candidates) == 1 else "the only one with so many gradients"
    else:
        how = f"the median of {len(usual_ones)} by duration"
    shapes = [_shapes(_accumulated(list(_within(events.operators, each)))) for each in (window, *dict(trained))]
    return _step(events, window, how, num_unlike=sum(each != shapes[0] for each in shapes), num_steps=len(trained))


def _windows(events: Events) -> Iterator[Window]:
    """Yield each step's time; see [Note: which step]."""
    marked = [(event, STEP.match(event.name)) for event in events.operators]
    found = [(event, int(match[1])) for event, match in marked if match]
    if found:
        for event, number in found:
            yield Window(
                number=number, label=event.name, begin_us=event.begin_us, end_us=event.end_us,
                of_process=event.thread[0],
            )  # fmt: skip
        return
    begin_us = events.operators[0].begin_us
    last_us = max(event.end_us for event in events.operators) + 1.0
    ends_us = [event.end_us for event in events.operators if event.name.startswith(_OPTIMIZER)]
    if not ends_us:
        yield Window(number=0, label="the whole trace, in which no step is marked", begin_us=begin_us, end_us=last_us)
        return
    for number, end_us in enumerate(ends_us):
        yield Window(number=number, label=f"step {number}, up to Optimizer.step", begin_us=begin_us, end_us=end_us)
        begin_us = end_us


def _within(events: Sequence[Event], window: Window) -> Iterator[Event]:
    first = bisect_left(events, window.begin_us, key=lambda event: event.begin_us)
    for event in events[first:]:
        if event.begin_us >= window.end_us:
            return
        if window.of_process in (None, event.thread[0]):
            yield event


def _num_gradients(events: Events, window: Window) -> int:
    return len(_accumulated(list(_within(events.operators, window))))


def _accumulated(events: Sequence[Event]) -> list[Event]:
    """Return the events by which autograd wrote gradients."""
    found = [event for event in events if event.name == ACCUMULATE]
    return found or [event for event in events if event.name == EVALUATE + ACCUMULATE]


def _shapes(accumulated: Sequence[Event]) -> Counter[str]:
    """Count gradients by shape and type, as the trace writes them."""
    return Counter(map(_shape, accumulated))


def _shape(accumulated: Event) -> str:
    return f"{accumulated.args.get('Input Dims')} {accumulated.args.get('Input type')}"


def _step(events: Events, window: Window, how: str, *, num_unlike: int, num_steps: int) -> Step:
    operators = list(_within(events.operators, window))
    backward = [event for event in operators if event.is_backward]
    forward = _forward_operators(operators, backward)
    passes = list(_passes(backward, sorted(event.begin_us for event in forward.values())))
    if forward:
        begin_us = min(event.begin_us for event in forward.values())
    else:
        operations = (event for event in operators if event.category.lower() in ("cpu_op", "operator"))
        begin_us = next(each.begin_us for each in operations if not _is_before_forward(each, operators))
    sending = list(_sending(passes, operators))[::-1]
    first = next(place for place, functions in enumerate(passes) if functions is sending[0][0])
    return Step(
        window=window, how_chosen=how, operators=operators, forward=forward, num_passes=len(passes),
        functions=[event for functions in passes[first:] for event in functions],
        accumulated=[event for _, accumulated in sending for event in accumulated],
        spans=[(functions[0].begin_us, _end_us(functions)) for functions, _ in sending],
        forward_begin_us=min(begin_us, passes[first][0].begin_us),
        num_unlike=num_unlike, num_steps=num_steps, is_marked=window.of_process is not None,
    )  # fmt: skip


def _sending(
    passes: Sequence[list[Event]], operators: Sequence[Event]
) -> Iterator[tuple[list[Event], list[Event]]]:
    """Yield (functions, events that wrote the sent gradients) of each pass that sends, the last one first.

    The rules are in [Note: passes].
    """
    has_shapes = any("Input Dims" in event.args for functions in passes for event in _accumulated(functions))
    steps_us = [event.begin_us for event in operators if event.name.startswith(_OPTIMIZER)]
    reductions_us = [event.begin_us for event in operators if is_reduction(event)]
    later, later_us = Counter[str](), math.inf
    for functions in reversed(passes):
        begin_us, end_us = functions[0].begin_us, _end_us(functions)
        is_last = later_us == math.inf or any(end_us <= step_us < later_us for step_us in steps_us)
        accumulated = _accumulated(functions)
        if is_last:
            later, sent = _shapes(accumulated), accumulated
        elif has_shapes:
            own = Counter[str]()
            sent = []
            for event in accumulated:
                own[_shape(event)] += 1
                if own[_shape(event)] > later[_shape(event)]:
                    sent.append(event)
            later |= own
        else:
            sent = accumulated if any(begin_us <= at_us <= end_us for at_us in reductions_us) else []
        later_us = begin_us
        if sent:
            yield functions, sent


def _end_us(functions: Sequence[Event]) -> float:
    return max(event.end_us for event in functions)


def _is_before_forward(event: Event, operators: Sequence[Event]) -> bool:
    """Return whether an event belongs to zeroing gradients or loading data, or is a mark itself."""
    return event.name.startswith((*_BEFORE_FORWARD, "ProfilerStep")) or any(
        outer.name.startswith(_BEFORE_FORWARD)
        and outer.thread == event.thread
        and outer.begin_us <= event.begin_us < outer.end_us
        for outer in operators
    )


def _forward_operators(operators: Sequence[Event], backward: Sequence[Event]) -> dict[int, Event]:
    """Return the operator that made each function of backward, by its sequence number.

    Operators that backward runs itself are excluded. Operators around it, and those that made no function, have the
    next number, and begin before it.
    """
    sequences = {event.sequence for event in backward}
    spans = _merged(backward)
    begins = [begin_us for begin_us, _ in spans]
    found = {}
    for event in operators:
        if event.is_backward or event.sequence is None or event.sequence not in sequences:
            continue
        index = bisect_right(begins, event.begin_us) - 1
        if index < 0 or event.begin_us >= spans[index][1]:
            found[event.sequence] = event
    return found


def _merged(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the time spans in which any of the events ran."""
    spans: list[tuple[float, float]] = []
    for event in events:
        if spans and event.begin_us < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], event.end_us))
        else:
            spans.append((event.begin_us, event.end_us))
    return spans


def _passes(backward: Sequence[Event], forward_us: Sequence[float]) -> Iterator[list[Event]]:
    """Yield the functions of each pass that has gradients; see [Note: passes]."""
    current: list[Event] = []
    end_us = 0.0
    for event in backward:
        if current and event.begin_us >= end_us:
            following = bisect_left(forward_us, end_us)
            if following < len(forward_us) and forward_us[following] < event.begin_us:
                if any(each.name.endswith(ACCUMULATE) for each in current):
                    yield current
                current = []
        current.append(event)
        end_us = max(end_us, event.end_us)
    if any(each.name.endswith(ACCUMULATE) for each in current):
        yield current
